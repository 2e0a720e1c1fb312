"""One small file per span dialect: how a framework spells agents, tools and model calls."""
