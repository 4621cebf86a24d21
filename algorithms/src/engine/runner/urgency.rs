//! Urgency: the buckets with priority when the next forward pass waits for them one by one.
//!
//! Buckets become complete from the last layer to the first, and the forward pass needs them from the first to the
//! last. If all buckets shared the link, all would arrive at about the same time, at the end. So of the hooks that have
//! begun, only the few most urgent continue; the others pause, with their messages in flight.
//!
//! Each rank decides this locally; ranks need not agree at any moment. The order is the same on all ranks, and the
//! gradients of a bucket become complete independently of communication. So every rank reaches the most urgent bucket
//! in progress on any rank, and all ranks continue with it until it is done. With fewer streams than buckets, a rank
//! may have no stream left for that bucket: then no hook is paused.

use super::HookRunner;

/// Number of hooks that continue at the same time: while one waits for its neighbours, the other uses the link.
const AT_ONCE: usize = 2;

impl HookRunner {
    /// Returns true if hooks may have to wait for more urgent ones.
    pub(super) fn puts_off(&self) -> bool {
        self.urgency.is_some() && self.streams() >= self.lanes.len()
    }

    /// Returns true if the hook at an index must wait for more urgent ones, which come before it. All hooks begin in
    /// the order in which they were started.
    pub(super) fn must_wait(&self, at: usize) -> bool {
        at >= AT_ONCE && self.running[at].begun && self.puts_off()
    }

    /// Sorts hooks by urgency, once all have begun.
    pub(super) fn put_in_order(&mut self) {
        if self.puts_off()
            && let Some(urgency) = &self.urgency
        {
            self.running.sort_by_key(|running| urgency[running.bucket]);
        }
    }
}
