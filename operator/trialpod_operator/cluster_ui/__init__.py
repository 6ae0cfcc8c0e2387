"""The page of a cluster: experiments of all namespaces, shown to each user as far as the user's own rights go."""
