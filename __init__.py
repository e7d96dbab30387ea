"""narrowcast: precision scheduling for trained networks."""
