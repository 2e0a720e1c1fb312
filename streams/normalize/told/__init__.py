"""What a model's span tells of its call: one file a convention, tried by the order of the table in `read_call.py`."""
