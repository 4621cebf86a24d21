//! Primitives in which ranks mix with neighbours, and nobody knows the mean of all.
