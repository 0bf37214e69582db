"""Beat: when an entry is due. (The scheduler itself is not here yet.)"""
