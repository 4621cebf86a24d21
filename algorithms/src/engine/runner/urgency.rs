//! Urgency: the buckets that go on before others, where the next forward pass waits for them one by one.
//!
//! Buckets become complete from the last layer to the first, and the forward pass needs them from the first to the last.
//! If all on their way shared the link, all would arrive at about the same time, at the end. So of the hooks that have
//! begun, the few most urgent go on, and the others rest, with what they have in flight.
//!
//! Each rank decides that for itself, from what it has: ranks need not agree on it at any moment. The order is the same
//! on all of them, and the gradients of a bucket become complete whatever is communicated meanwhile, so that every rank
//! comes to the most urgent bucket that any of them works on, and all of them go on with it until it is done. With fewer
//! streams than buckets that would not be so, as a rank may have none left for it: then no hook is put off.

use super::HookRunner;

/// Number of hooks that go on at once: while one waits for its neighbours, the other uses the link.
const AT_ONCE: usize = 2;

impl HookRunner {
    /// Returns true if hooks wait for more urgent ones.
    pub(super) fn puts_off(&self) -> bool {
        self.urgency.is_some() && self.streams() >= self.lanes.len()
    }

    /// Returns true if the hook at a place has to wait for more urgent ones, which are in the places before it. All begin
    /// in the order in which they were started.
    pub(super) fn must_wait(&self, at: usize) -> bool {
        at >= AT_ONCE && self.running[at].begun && self.puts_off()
    }

    /// Puts the most urgent hooks first, once all have begun.
    pub(super) fn put_in_order(&mut self) {
        if self.puts_off()
            && let Some(urgency) = &self.urgency
        {
            self.running.sort_by_key(|running| urgency[running.bucket]);
        }
    }
}
