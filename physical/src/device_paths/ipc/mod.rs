//! The path between GPUs of one host that read each other's memory.
//!
//! Every rank reads the others' buffers where they are, and writes its own only, in the order of shared memory's
//! collectives and with their bits:
//!
//! ```text
//! all-reduce       rank r combines chunk r of all buffers in one kernel, and copies the others' chunks from them
//! reduce-scatter   rank r combines block r of all inputs in one kernel
//! all-gather       every rank copies all inputs
//! broadcast        every rank copies the root's buffer
//! message          the sender copies it to lent memory, from which the receiver copies or reduces it
//! ```
//!
//! *Streams* wait for each other, by words in host memory that all ranks share (`sync_pages`): a stream writes its progress
//! into the pages of the other ranks, and waits until theirs have the same progress. The host takes no part in this, but can
//! write the words in its own page, to release its streams when a rank is dead (`watch`). It could not release an event of
//! another process.
//!
//! *Hosts* compare their calls (`agreement`): each sends its label and the location of its buffer to rank 0, which sends all of
//! these and a number to every rank. Operations of all endpoints are enqueued in the `order` of these numbers, the same on all
//! ranks, as two ranks that enqueue two operations on one stream in opposite order would wait for each other for ever. Ranks of
//! one process, whose streams share its work queues, are enqueued together (`joint_enqueue`), step by step (`rank_step`). Only
//! the two ranks of a message exchange notices about it (`messages`), and the receiver's stream waits for work that the sender
//! has already enqueued (`outbox`). For the host, an operation ends when it is enqueued.
//!
//! Buffers that others read are *registered* (`memory`): memory of `cuMemAlloc`, which another process can open. Other buffers,
//! and every message, are first copied to such memory, and read from there.

mod agreement;
mod collectives;
mod combine;
mod connect;
mod contribution;
mod endpoint;
mod joint_enqueue;
mod memory;
mod messages;
mod order;
mod rank_step;
mod sync_pages;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use connect::connect;
pub(crate) use joint_enqueue::number;
