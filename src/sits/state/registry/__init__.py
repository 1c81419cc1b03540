"""The registry's state: vectors of cards in the vector port, entries of other registries in the store, and how these are read.

index     cards by meaning, over the vector port
entries   what was imported, in the store
consul    answers of a Consul agent -> cards
eureka    answers of a Eureka server, JSON or XML -> cards
imported  what both have in common; cards -> Model resources
source    a file or an address -> cards
"""
