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
//! *Streams* wait for each other, by words in host memory that all ranks share (`words`): a stream writes into the pages
//! of the others how far it is, and waits until theirs are as far. The host has no part in it, but can write the words in
//! its own page itself, to release its streams when a rank is dead (`watch`): an event of another process could not be
//! released.
//!
//! *Hosts* compare what they call (`agreement`): each sends its label and where its buffer is to rank 0, which answers
//! everyone with all of that and a number. Operations of all endpoints are enqueued in the `order` of these numbers, the
//! same on all ranks, as two ranks that enqueue two operations on one stream in opposite order would wait for each other
//! for ever. Ranks of one process, whose streams share its work queues, are enqueued together (`meeting`), each `part` step by
//! step. Of a message (`messages`) only its two ranks tell each other, and its receiver's stream waits for what the
//! sender has enqueued already (`outbox`). An operation is over for the host when it is enqueued.
//!
//! Buffers that others read are *registered* (`memory`): memory of `cuMemAlloc`, which another process can open. What is
//! not registered is copied to such memory first, and all-reduced from there; so is every message.

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
