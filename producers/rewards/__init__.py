"""The rewards gateway: what people and programs say of an agent's work, once it is done."""
