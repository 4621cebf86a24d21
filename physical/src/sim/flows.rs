//! Flows: bytes on their way over links, which share a link's bandwidth fairly. Open this to see how long a message takes.
//!
//! Rates are max-min fair: no flow can have more without one that has no more than it having less (Bertsekas and Gallager,
//! Data Networks, section 6.5.2). They change when a flow begins or ends, and then only among flows that share links with
//! it, directly or by way of others; so what costs time is how many do.

use super::agenda::Time;
use std::mem;
use std::sync::Arc;

/// Number of a link, which leads one way.
pub(super) type LinkNumber = u32;

/// Number of a flow.
pub(super) type FlowNumber = u32;

/// Bytes that count as none: rates are rounded, and so is time.
const NOTHING: f64 = 1e-3;

/// Ratio up to which two links are as crowded: one transfer of a second thus takes a nanosecond more or less.
const ALIKE: f64 = 1.0 + 1e-9;

/// Bytes on their way.
#[derive(Debug, Clone)]
struct Flow {
    route: Arc<[LinkNumber]>,
    /// Bytes that had not left at the time `since`.
    left: f64,
    /// Bytes that leave in a nanosecond.
    rate: f64,
    since: Time,
    /// Time at which it is to be looked at; the end of time if another flow is, earlier.
    due: Time,
}

impl Flow {
    /// Returns the time at which all its bytes will have left, unless rates change.
    fn ends(&self, now: Time) -> Option<Time> {
        let lasts = (self.left.max(0.0) / self.rate).ceil();
        (self.rate > 0.0).then(|| now.saturating_add(lasts as Time))
    }

    /// Counts what has left by now; returns true if all has.
    fn settle(&mut self, now: Time) -> bool {
        self.left -= self.rate * (now - self.since) as f64;
        self.since = now;
        self.left <= NOTHING
    }
}

#[derive(Debug, Clone)]
struct Wire {
    /// Bytes in a nanosecond.
    capacity: f64,
    flows: Vec<FlowNumber>,
    /// Round of [`Flows::connect`] that has seen it last.
    seen: u64,
    /// Bandwidth that is left while flows are given theirs.
    left: f64,
    /// Number of flows that have not been given theirs yet.
    open: usize,
}

impl Wire {
    /// Returns what each flow gets that has not been given its bandwidth yet.
    fn share(&self) -> f64 {
        (self.left / self.open as f64).max(0.0)
    }
}

/// All flows of a network.
#[derive(Debug, Default)]
pub(super) struct Flows {
    wires: Vec<Wire>,
    /// `None` of a number that is free.
    flows: Vec<Option<Flow>>,
    /// Round that has seen a flow last.
    seen: Vec<u64>,
    free: Vec<FlowNumber>,
    /// Links on which a flow has begun or ended since rates were last computed.
    changed: Vec<LinkNumber>,
    round: u64,
    group: Group,
}

/// Links and flows that are connected by each other.
#[derive(Debug, Default)]
struct Group {
    links: Vec<LinkNumber>,
    flows: Vec<FlowNumber>,
}

impl Flows {
    /// Adds a link of so many bytes a second.
    pub(super) fn add_link(&mut self, bandwidth: f64) -> LinkNumber {
        let capacity = bandwidth / 1e9;
        self.wires.push(Wire { capacity, flows: Vec::new(), seen: 0, left: 0.0, open: 0 });
        (self.wires.len() - 1) as LinkNumber
    }

    /// Changes the bandwidth of a link, in bytes a second. Zero cuts it: what is on its way waits.
    pub(super) fn set_bandwidth(&mut self, link: LinkNumber, bandwidth: f64) {
        self.wires[link as usize].capacity = bandwidth / 1e9;
        self.changed.push(link);
    }

    /// Begins a flow of so many bytes over links, of which there is at least one.
    pub(super) fn begin(&mut self, now: Time, route: Arc<[LinkNumber]>, bytes: usize) -> FlowNumber {
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.seen.push(0);
            (self.flows.len() - 1) as FlowNumber
        });
        for link in &*route {
            self.wires[*link as usize].flows.push(number);
        }
        self.changed.extend_from_slice(&route);
        let flow = Flow { route, left: bytes as f64, rate: 0.0, since: now, due: Time::MAX };
        self.flows[number as usize] = Some(flow);
        number
    }

    /// Returns true if rates have to be computed before time passes.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Ends a flow before its bytes have left, or after.
    pub(super) fn end(&mut self, number: FlowNumber) {
        let Some(flow) = self.flows[number as usize].take() else { return };
        for link in &*flow.route {
            let flows = &mut self.wires[*link as usize].flows;
            if let Some(at) = flows.iter().position(|other| *other == number) {
                flows.swap_remove(at);
            }
        }
        self.changed.extend_from_slice(&flow.route);
        self.free.push(number);
    }

    /// Looks at the flows that share links with `number`, itself included, if it is due: those whose bytes have left
    /// end, and are added to `done` in the order of their numbers.
    pub(super) fn finish(&mut self, now: Time, number: FlowNumber, done: &mut Vec<FlowNumber>) {
        let Some(flow) = self.flows[number as usize].as_mut().filter(|flow| flow.due == now) else { return };
        flow.due = Time::MAX;
        let link = flow.route[0];
        let group = self.connect(link);
        for number in &group.flows {
            if self.flows[*number as usize].as_mut().is_some_and(|flow| flow.settle(now)) {
                done.push(*number);
            }
        }
        self.group = group;
        done.sort_unstable();
        done.iter().for_each(|flow| self.end(*flow));
    }

    /// Computes the rates of all flows for which they may have changed. Calls `ends` for each group of flows that share
    /// links, with one that is the first to end, and when.
    pub(super) fn share(&mut self, now: Time, mut ends: impl FnMut(Time, FlowNumber)) {
        let mut changed = mem::take(&mut self.changed);
        let before = self.round;
        for link in changed.drain(..) {
            if self.wires[link as usize].seen > before {
                continue;
            }
            let group = self.connect(link);
            self.fill(now, &group);
            if let Some((at, number)) = self.first(now, &group)
                && let Some(flow) = &mut self.flows[number as usize]
                && mem::replace(&mut flow.due, at) != at
            {
                ends(at, number);
            }
            self.group = group;
        }
        self.changed = changed;
    }

    /// Returns the flow that ends first, and when; nobody has to look at the others.
    fn first(&mut self, now: Time, group: &Group) -> Option<(Time, FlowNumber)> {
        let mut first = None;
        for number in &group.flows {
            let Some(flow) = &self.flows[*number as usize] else { continue };
            let Some(at) = flow.ends(now) else { continue };
            if first.is_none_or(|first| (at, *number) < first) {
                first = Some((at, *number));
            }
        }
        for number in &group.flows {
            if let Some(flow) = &mut self.flows[*number as usize]
                && first.is_none_or(|(_, first)| first != *number)
            {
                flow.due = Time::MAX;
            }
        }
        first
    }

    /// Returns the links that are connected with this one by flows, and those flows.
    fn connect(&mut self, link: LinkNumber) -> Group {
        let mut group = mem::take(&mut self.group);
        group.links.clear();
        group.flows.clear();
        self.round += 1;
        let round = self.round;
        self.wires[link as usize].seen = round;
        group.links.push(link);
        let mut next = 0;
        while let Some(&link) = group.links.get(next) {
            next += 1;
            for at in 0..self.wires[link as usize].flows.len() {
                let number = self.wires[link as usize].flows[at];
                if mem::replace(&mut self.seen[number as usize], round) == round {
                    continue;
                }
                group.flows.push(number);
                let Some(flow) = &self.flows[number as usize] else { continue };
                for other in &*flow.route {
                    if mem::replace(&mut self.wires[*other as usize].seen, round) != round {
                        group.links.push(*other);
                    }
                }
            }
        }
        group
    }

    /// Gives the flows of a group their rates from now on: those of the most crowded links first.
    fn fill(&mut self, now: Time, group: &Group) {
        for number in &group.flows {
            if let Some(flow) = &mut self.flows[*number as usize] {
                flow.settle(now);
                flow.rate = -1.0;
            }
        }
        let mut open: Vec<LinkNumber> = Vec::with_capacity(group.links.len());
        for link in &group.links {
            let wire = &mut self.wires[*link as usize];
            wire.left = wire.capacity;
            wire.open = wire.flows.len();
            open.push(*link);
        }
        loop {
            open.retain(|link| self.wires[*link as usize].open > 0);
            let shares = open.iter().map(|link| self.wires[*link as usize].share());
            let Some(least) = shares.min_by(f64::total_cmp) else { return };
            for link in &open {
                let wire = &self.wires[*link as usize];
                if wire.open > 0 && wire.share() <= least * ALIKE {
                    self.fill_link(*link, least);
                }
            }
        }
    }

    /// Gives the flows of a link that have no rate yet this one.
    fn fill_link(&mut self, link: LinkNumber, rate: f64) {
        for at in 0..self.wires[link as usize].flows.len() {
            let number = self.wires[link as usize].flows[at];
            let Some(flow) = &mut self.flows[number as usize] else { continue };
            if flow.rate >= 0.0 {
                continue;
            }
            flow.rate = rate;
            for other in &*flow.route {
                let wire = &mut self.wires[*other as usize];
                wire.left -= rate;
                wire.open -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABYTE: f64 = 1e9;

    fn finish(network: &mut Flows, now: Time, flow: FlowNumber) -> Vec<FlowNumber> {
        let mut done = Vec::new();
        network.finish(now, flow, &mut done);
        done
    }

    /// Runs flows, each of links and bytes and a time at which it begins, and returns when each ends.
    fn run(bandwidths: &[f64], flows: &[(&[LinkNumber], usize, Time)]) -> Vec<Time> {
        let mut network = Flows::default();
        for bandwidth in bandwidths {
            network.add_link(*bandwidth);
        }
        let mut ended = vec![0; flows.len()];
        let mut begun: Vec<(FlowNumber, usize)> = Vec::new();
        let mut due: Vec<(Time, FlowNumber)> = Vec::new();
        let mut now = 0;
        loop {
            for (at, (route, bytes, _)) in flows.iter().enumerate().filter(|(_, flow)| flow.2 == now) {
                begun.push((network.begin(now, (*route).into(), *bytes), at));
            }
            network.share(now, |at, flow| due.push((at, flow)));
            let starts = flows.iter().map(|flow| flow.2).filter(|start| *start > now);
            let Some(next) = starts.chain(due.iter().map(|due| due.0)).min() else { return ended };
            now = next;
            let (ready, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at == now);
            due = rest;
            for (_, flow) in ready {
                for done in finish(&mut network, now, flow) {
                    let at = begun.iter().position(|(number, _)| *number == done).unwrap();
                    ended[begun.swap_remove(at).1] = now;
                }
            }
        }
    }

    #[test]
    fn a_flow_alone_has_the_narrowest_link_for_itself() {
        assert_eq!(run(&[GIGABYTE, GIGABYTE / 4.0], &[(&[0, 1], 1000, 0)]), [4000]);
    }

    #[test]
    fn two_flows_halve_a_link_and_the_second_has_it_alone_in_the_end() {
        assert_eq!(run(&[GIGABYTE], &[(&[0], 1000, 0), (&[0], 2000, 0)]), [2000, 3000]);
        // The first is half done when the second comes.
        assert_eq!(run(&[GIGABYTE], &[(&[0], 1000, 0), (&[0], 1000, 500)]), [1500, 2000]);
    }

    #[test]
    fn what_a_flow_cannot_use_goes_to_the_others() {
        // Flow 0 crosses both links, flow 1 the wide one, flows 2 and 3 the narrow one: 1/3, 5/3, 1/3 and 1/3.
        let ends = run(
            &[2.0 * GIGABYTE, GIGABYTE],
            &[(&[0, 1], 1000, 0), (&[0], 5000, 0), (&[1], 1000, 0), (&[1], 1000, 0)],
        );
        assert_eq!(ends, [3000, 3000, 3000, 3000]);
    }

    #[test]
    fn a_cut_link_holds_what_is_on_its_way() {
        let mut network = Flows::default();
        let link = network.add_link(GIGABYTE);
        let flow = network.begin(0, [link].into(), 1000);
        let mut due = Vec::new();
        network.share(0, |at, flow| due.push((at, flow)));
        network.set_bandwidth(link, 0.0);
        network.share(400, |at, flow| due.push((at, flow)));
        assert_eq!(due, [(1000, flow)], "nothing is due while it is cut");
        assert!(finish(&mut network, 1000, flow).is_empty());
        network.set_bandwidth(link, GIGABYTE);
        network.share(2000, |at, flow| due.push((at, flow)));
        assert_eq!(due[1], (2600, flow));
        assert_eq!(finish(&mut network, 2600, flow), [flow]);
    }

    #[test]
    fn rates_are_max_min_fair_on_random_networks() {
        use crate::sim::agenda::Draws;
        let mut draws = Draws::new(1);
        for _ in 0..50 {
            let mut network = Flows::default();
            let links = 2 + draws.word() as usize % 8;
            let capacities: Vec<f64> = (0..links).map(|_| 1.0 + draws.fraction()).collect();
            for capacity in &capacities {
                network.add_link(capacity * 1e9);
            }
            for _ in 0..20 {
                let mut route: Vec<LinkNumber> =
                    (0..3).map(|_| (draws.word() % links as u64) as LinkNumber).collect();
                route.sort_unstable();
                route.dedup();
                network.begin(0, route.into(), 1000);
            }
            network.share(0, |_, _| {});
            let used = |link: usize| -> f64 {
                let flows = network.wires[link].flows.iter();
                flows.map(|flow| network.flows[*flow as usize].as_ref().unwrap().rate).sum()
            };
            for flow in network.flows.iter().flatten() {
                // Each flow has a link that is full, on which none has more than it.
                let held = flow.route.iter().any(|link| {
                    let link = *link as usize;
                    let rates = network.wires[link].flows.iter();
                    let most = rates.map(|flow| network.flows[*flow as usize].as_ref().unwrap().rate);
                    used(link) > capacities[link] - 1e-9 && most.fold(0.0, f64::max) <= flow.rate + 1e-9
                });
                assert!(held);
            }
            assert!((0..links).all(|link| used(link) <= capacities[link] + 1e-9));
        }
    }
}
