"""The vLLM process: how it is started, and whether it and its model are fit for training."""
