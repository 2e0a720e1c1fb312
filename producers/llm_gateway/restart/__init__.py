"""How a gateway goes on with the attempts that another process of it left open."""
