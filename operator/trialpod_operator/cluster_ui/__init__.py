"""The page of a cluster: experiments of all namespaces, of which each user sees what they have permission to see."""
