"""Words of the domain: models, errors, clocks. Standard library only."""
