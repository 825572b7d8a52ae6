"""How chat APIs spell requests and answers."""
