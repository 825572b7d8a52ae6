"""Load for a session server: an engine that costs almost nothing, clients, and what they cost the server."""
