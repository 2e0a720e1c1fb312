"""What a Learner (trainer/learner.py) is run by: one process on one device, `single.py`."""
