"""STORE: values become rows and rows become values; a contract, its adapters, and the drivers beneath them."""
