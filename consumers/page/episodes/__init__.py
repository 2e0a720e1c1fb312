"""What was said: a task before and after, groups, a group, an episode; each a view of the page."""
