//! Worlds whose members change: the side of a rank. `hexagram run --elastic` keeps the membership.
//!
//! A *generation* is the set of processes of one world. Each process has one end of a socket pair, whose other end only
//! its launcher has, so that no listener and no secret are necessary: a descriptor is inherited, and ends with its process.
//!
//! | module | content |
//! |---|---|
//! | `messages` | the messages of both sides |
//! | `link` | the connection of this process to its launcher |
//! | `generation` | one generation, and the store through which its ranks meet |

pub(crate) mod generation;
pub(crate) mod link;
pub(crate) mod messages;
