//! Flows: bytes on their way over links, which share a link's bandwidth fairly.
//!
//! Rates are max-min fair: no flow can have more without reducing one that does not have more than it (Bertsekas and
//! Gallager, Data Networks, section 6.5.2). They change when flows begin or end: `fair` computes those that change,
//! and leaves the others unchanged. Flows that got their rates together are a *cohort*, of which only the first to
//! end is tracked.

mod deferral;
mod fair;
#[cfg(test)]
mod tests;

use crate::sim::schedule::agenda::Nanoseconds;
use deferral::Changes;
use fair::LinkShares;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Number of a link, which leads one way.
pub(crate) type LinkNumber = u32;

/// Number of a flow.
pub(crate) type FlowNumber = u32;

/// Number of a cohort.
pub(crate) type CohortNumber = u32;

/// Largest bandwidth of a link, in bytes per nanosecond: an infinite one cannot be shared.
const LARGEST: f64 = 1e15;

/// Bytes that count as none: rates and times are rounded.
const NOTHING: f64 = 1e-3;

/// Link that limits a flow without rate, and cohort of such a flow.
const NONE: u32 = u32::MAX;

/// Links from one place to another, in the order of the bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FlowRoute {
    first: u32,
    count: u32,
}

impl FlowRoute {
    /// Returns true if it has no link.
    pub(crate) fn is_empty(self) -> bool {
        self.count == 0
    }

    fn range(self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Bytes on their way.
#[derive(Debug, Clone, Copy)]
struct Flow {
    route: FlowRoute,
    /// Bytes that had not left at the time `since`.
    left: f64,
    /// Bytes that leave in a nanosecond.
    rate: f64,
    since: Nanoseconds,
    began: Nanoseconds,
    /// Time at which all its bytes will have left, unless its rate changes.
    ends: Nanoseconds,
    /// Link that limits it.
    limit: LinkNumber,
    cohort: CohortNumber,
    /// Round in which its rate was last computed.
    round: u64,
    lives: bool,
}

impl Flow {
    /// Counts the bytes that have left by now.
    fn settle(&mut self, now: Nanoseconds) {
        self.left -= self.rate * (now - self.since) as f64;
        self.since = now;
    }

    /// Sets its rate, and the nanoseconds per byte, which the caller has computed, since a division takes long.
    fn set_rate(&mut self, rate: f64, pace: f64) {
        self.rate = rate;
        let lasts = (self.left - NOTHING).max(0.0) * pace;
        // Rounded up, except for a whole number; casts saturate.
        let whole = lasts as Nanoseconds;
        self.ends =
            self.since.saturating_add(whole.saturating_add(Nanoseconds::from((whole as f64) < lasts)));
    }
}

#[derive(Debug, Clone)]
struct Wire {
    /// Bytes in a nanosecond.
    capacity: f64,
    flows: Vec<FlowNumber>,
    /// Sum of the rates of its flows.
    used: f64,
    /// Sum of the rates of the flows that have ended since the link was last shared.
    idle: f64,
    /// Number of flows that it limits.
    limited: u32,
    /// Rate of these, up to the tolerance.
    level: f64,
    sharing: LinkShares,
}

/// Flows that got their rates together.
#[derive(Debug, Default)]
struct Cohort {
    members: Vec<FlowNumber>,
    /// Members, ordered by the time at which they end; empty until the cohort is due for the first time.
    queue: BinaryHeap<Reverse<(Nanoseconds, FlowNumber)>>,
    /// Number of members that have neither ended nor got a new rate.
    live: u32,
    /// Time at which the first of them ends; the end of time if none does.
    due: Nanoseconds,
}

/// All flows of a network.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    wires: Vec<Wire>,
    /// Links of all routes, one route after another.
    routes: Vec<LinkNumber>,
    flows: Vec<Flow>,
    free: Vec<FlowNumber>,
    cohorts: Vec<Cohort>,
    free_cohorts: Vec<CohortNumber>,
    changes: Changes,
    /// Flows that have continued with other bytes since rates were last computed.
    renewed: Vec<FlowNumber>,
    round: u64,
    /// Scratch: flows and links whose rates are being computed.
    active: Vec<FlowNumber>,
    touched: Vec<LinkNumber>,
    queue: fair::LinkQueue,
}

impl Flows {
    /// Adds a link of this bandwidth, in bytes per second.
    pub(crate) fn add_link(&mut self, bandwidth: f64) -> LinkNumber {
        self.wires.push(Wire {
            capacity: (bandwidth / 1e9).min(LARGEST),
            flows: Vec::new(),
            used: 0.0,
            idle: 0.0,
            limited: 0,
            level: 0.0,
            sharing: LinkShares::default(),
        });
        (self.wires.len() - 1) as LinkNumber
    }

    /// Adds a route over links, each of which it passes once.
    pub(crate) fn add_route(&mut self, links: impl IntoIterator<Item = LinkNumber>) -> FlowRoute {
        let first = self.routes.len();
        self.routes.extend(links);
        FlowRoute { first: first as u32, count: (self.routes.len() - first) as u32 }
    }

    /// Changes the bandwidth of a link, in bytes per second. At zero, its bytes wait.
    pub(crate) fn set_bandwidth(&mut self, now: Nanoseconds, link: LinkNumber, bandwidth: f64) {
        self.wires[link as usize].capacity = (bandwidth / 1e9).min(LARGEST);
        self.changes.add(now, 0.0, &[link]);
    }

    /// Begins a flow of this number of bytes on a route that has links.
    pub(crate) fn begin(&mut self, now: Nanoseconds, route: FlowRoute, bytes: usize) -> FlowNumber {
        let flow = Flow {
            route,
            left: bytes as f64,
            rate: 0.0,
            since: now,
            began: now,
            ends: Nanoseconds::MAX,
            limit: NONE,
            cohort: NONE,
            round: 0,
            lives: true,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.flows[number as usize] = flow;
                number
            }
            None => {
                self.flows.push(flow);
                (self.flows.len() - 1) as FlowNumber
            }
        };
        for link in &self.routes[route.range()] {
            self.wires[*link as usize].flows.push(number);
        }
        self.has_begun(now, route.range(), bytes);
        number
    }

    /// Continues a finished flow with further bytes, so that no rate changes.
    pub(crate) fn renew(&mut self, now: Nanoseconds, number: FlowNumber, bytes: usize) {
        let flow = &mut self.flows[number as usize];
        flow.left = bytes as f64;
        flow.since = now;
        flow.began = now;
        flow.set_rate(flow.rate, 1.0 / flow.rate);
        let lasts = flow.ends - now;
        self.renewed.push(number);
        self.changes.has_renewed(now, lasts);
    }

    /// Ends a flow before its bytes have left, or after.
    pub(crate) fn end(&mut self, now: Nanoseconds, number: FlowNumber) {
        let flow = &mut self.flows[number as usize];
        if !std::mem::take(&mut flow.lives) {
            return;
        }
        let Flow { route, rate, limit, cohort, began, .. } = *flow;
        for link in &self.routes[route.range()] {
            let wire = &mut self.wires[*link as usize];
            if let Some(at) = wire.flows.iter().position(|other| *other == number) {
                wire.flows.swap_remove(at);
            }
            // An empty link begins without the rounding error of sums of rates.
            wire.used = if wire.flows.is_empty() { 0.0 } else { wire.used - rate };
            wire.limited -= u32::from(*link == limit);
            wire.idle += rate;
        }
        self.has_ended(now, route.range(), now - began);
        self.leave_cohort(cohort);
        self.free.push(number);
    }

    /// Adds the finished flows of a cohort, if it is due, to `done`, in the order of their numbers; the caller must
    /// end or renew each. Returns the next time at which the cohort is due, if any.
    pub(crate) fn finish(
        &mut self,
        now: Nanoseconds,
        number: CohortNumber,
        done: &mut Vec<FlowNumber>,
    ) -> Option<Nanoseconds> {
        let Flows { cohorts, flows, .. } = self;
        let cohort =
            cohorts.get_mut(number as usize).filter(|cohort| cohort.live > 0 && cohort.due == now)?;
        let is_member = |member: FlowNumber| {
            let flow = &flows[member as usize];
            flow.lives && flow.cohort == number
        };
        let ends = |member: FlowNumber| Reverse((flows[member as usize].ends, member));
        // Not before the first of them ends: most are given other rates until then.
        cohort.queue.extend(cohort.members.drain(..).filter(|member| is_member(*member)).map(ends));
        cohort.due = Nanoseconds::MAX;
        while let Some(Reverse((ends, member))) = cohort.queue.peek().copied() {
            let is_member = is_member(member);
            if is_member && ends > now {
                cohort.due = ends;
                break;
            }
            cohort.queue.pop();
            done.extend(is_member.then_some(member));
        }
        let due = cohort.due;
        for member in done.iter() {
            self.flows[*member as usize].cohort = NONE;
            self.leave_cohort(number);
        }
        (due < Nanoseconds::MAX).then_some(due)
    }

    /// Returns the number of a cohort that has no members yet.
    fn new_cohort(&mut self) -> CohortNumber {
        self.free_cohorts.pop().unwrap_or_else(|| {
            self.cohorts.push(Cohort::default());
            (self.cohorts.len() - 1) as CohortNumber
        })
    }

    /// Makes flows the members of a cohort, if there are any. Returns the time at which it is due, if it is.
    fn fill_cohort(
        &mut self,
        number: CohortNumber,
        members: &[FlowNumber],
        due: Nanoseconds,
    ) -> Option<Nanoseconds> {
        if members.is_empty() {
            self.free_cohorts.push(number);
            return None;
        }
        let cohort = &mut self.cohorts[number as usize];
        cohort.members.extend_from_slice(members);
        cohort.live = members.len() as u32;
        cohort.due = due;
        (due < Nanoseconds::MAX).then_some(due)
    }

    /// Counts a flow that leaves a cohort, whose memory is reused after the last.
    fn leave_cohort(&mut self, number: CohortNumber) {
        let Some(cohort) = self.cohorts.get_mut(number as usize) else { return };
        cohort.live -= 1;
        if cohort.live == 0 {
            cohort.members.clear();
            cohort.queue.clear();
            self.free_cohorts.push(number);
        }
    }
}
