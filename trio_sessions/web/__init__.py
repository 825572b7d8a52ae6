"""HTTP: routes, dialects and the one table from domain errors to statuses."""
