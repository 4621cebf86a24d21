//! Primitives in which no rank waits for another's step: windows, pair exchanges, servers, operations in the background.
