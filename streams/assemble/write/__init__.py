"""An episode that closes becomes its record."""
