"""Sessions and turns: the pure core under locks, nurseries and deadlines."""
