"""Redis, for hints, queues and flows alike: an address or a client comes in, connections and scripts go out."""
