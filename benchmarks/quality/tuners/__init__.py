"""The tuners that are compared: trialpod's engine in this process, peers as their own code in processes of theirs."""
