//! Tests of flows: fair shares of links, and when bytes have left.

use super::*;
use crate::sim::agenda::Draws;

const GIGABYTE: f64 = 1e9;

fn finish(network: &mut Flows, now: Time, cohort: CohortNumber) -> (Vec<FlowNumber>, Option<Time>) {
    let mut done = Vec::new();
    let due = network.finish(now, cohort, &mut done);
    done.iter().for_each(|flow| network.end(*flow));
    (done, due)
}

fn begin(network: &mut Flows, now: Time, links: &[LinkNumber], bytes: usize) -> FlowNumber {
    let route = network.add_route(links.iter().copied());
    network.begin(now, route, bytes)
}

/// Runs flows, each of links and bytes and a time at which it begins, and returns when each ends.
fn run(bandwidths: &[f64], flows: &[(&[LinkNumber], usize, Time)]) -> Vec<Time> {
    let mut network = Flows::default();
    for bandwidth in bandwidths {
        network.add_link(*bandwidth);
    }
    let mut ended = vec![0; flows.len()];
    let mut begun: Vec<(FlowNumber, usize)> = Vec::new();
    let mut due: Vec<(Time, CohortNumber)> = Vec::new();
    let mut now = 0;
    loop {
        for (at, (route, bytes, _)) in flows.iter().enumerate().filter(|(_, flow)| flow.2 == now) {
            begun.push((begin(&mut network, now, route, *bytes), at));
        }
        network.share(now, |at, cohort| due.push((at, cohort)));
        let starts = flows.iter().map(|flow| flow.2).filter(|start| *start > now);
        let Some(next) = starts.chain(due.iter().map(|due| due.0)).min() else { return ended };
        now = next;
        let (ready, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at == now);
        due = rest;
        for (_, cohort) in ready {
            let (done, again) = finish(&mut network, now, cohort);
            due.extend(again.map(|at| (at, cohort)));
            for done in done {
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
fn a_link_without_bandwidth_holds_what_is_on_its_way() {
    let mut network = Flows::default();
    let link = network.add_link(GIGABYTE);
    let flow = begin(&mut network, 0, &[link], 1000);
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    network.set_bandwidth(link, 0.0);
    network.share(400, |at, cohort| due.push((at, cohort)));
    assert!(matches!(due[..], [(1000, _)]), "nothing is due while there is none: {due:?}");
    assert_eq!(finish(&mut network, 1000, due[0].1), (vec![], None));
    network.set_bandwidth(link, GIGABYTE);
    network.share(2000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due[1].0, 2600);
    assert_eq!(finish(&mut network, 2600, due[1].1), (vec![flow], None));
}

impl Flows {
    fn rate(&self, flow: FlowNumber) -> f64 {
        self.flows[flow as usize].rate
    }

    /// Returns what flows have of a link.
    fn sum(&self, link: usize) -> f64 {
        self.wires[link].flows.iter().map(|flow| self.rate(*flow)).sum()
    }

    /// Fails unless each flow has a link that is full, on which none has more than it, and no link carries more than it
    /// can.
    fn check_fairness(&self, tolerance: f64) {
        for (number, flow) in self.flows.iter().enumerate().filter(|(_, flow)| flow.lives) {
            let held = self.routes[flow.route.range()].iter().any(|link| {
                let wire = &self.wires[*link as usize];
                let most = wire.flows.iter().map(|flow| self.rate(*flow)).fold(0.0, f64::max);
                self.sum(*link as usize) >= wire.capacity * (1.0 - tolerance)
                    && most <= flow.rate * (1.0 + tolerance)
            });
            assert!(held, "flow {number} could have more than {}", flow.rate);
        }
        for (number, wire) in self.wires.iter().enumerate() {
            let sum = self.sum(number);
            assert!(sum <= wire.capacity * (1.0 + 1e-9), "link {number} carries {sum} of {}", wire.capacity);
            assert!((sum - wire.used).abs() <= 1e-9 * wire.capacity);
        }
    }
}

#[test]
fn rates_are_max_min_fair_on_random_networks_whatever_begins_and_ends() {
    let mut draws = Draws::new(1);
    for _ in 0..50 {
        let mut network = Flows::default();
        let links = 2 + draws.word() as usize % 30;
        for _ in 0..links {
            network.add_link((1.0 + draws.fraction()) * 1e9);
        }
        let mut alive = Vec::new();
        for step in 0..100 {
            for _ in 0..1 + draws.word() % 3 {
                if draws.fraction() < 0.4 && !alive.is_empty() {
                    network.end(alive.swap_remove(draws.word() as usize % alive.len()));
                    continue;
                }
                let mut route: Vec<LinkNumber> =
                    (0..3).map(|_| (draws.word() % links as u64) as LinkNumber).collect();
                route.sort_unstable();
                route.dedup();
                alive.push(begin(&mut network, step, &route, 1_000_000_000));
            }
            if draws.fraction() < 0.1 {
                let link = draws.word() % links as u64;
                network.set_bandwidth(link as LinkNumber, (0.5 + draws.fraction()) * 1e9);
            }
            network.share(step, |_, _| {});
            // A rate is compared with the level of its link, and that with the largest rate.
            network.check_fairness(3.0 * fair::TOLERANCE);
        }
    }
}

#[test]
fn what_changes_far_away_changes_nothing_here() {
    // Every host of 20 sends to every other: two links each, one either way.
    const HOSTS: u32 = 20;
    let mut network = Flows::default();
    for _ in 0..2 * HOSTS {
        network.add_link(GIGABYTE);
    }
    let mut flows = Vec::new();
    for from in 0..HOSTS {
        for to in (0..HOSTS).filter(|to| *to != from) {
            flows.push(begin(&mut network, 0, &[from, HOSTS + to], 1_000_000));
        }
    }
    network.share(0, |_, _| {});
    let even = 1.0 / f64::from(HOSTS - 1);
    assert!(flows.iter().all(|flow| (network.rate(*flow) - even).abs() < 1e-9));
    network.end(flows.remove(0));
    network.share(1000, |_, _| {});
    let renewed = flows.iter().filter(|flow| network.flows[**flow as usize].since == 1000).count();
    // The others of its two links, which gain nothing, as each has another link that is full.
    assert_eq!(renewed as u32, 2 * (HOSTS - 2));
    assert!(flows.iter().all(|flow| (network.rate(*flow) - even).abs() < 1e-9));
    network.check_fairness(fair::TOLERANCE);
}

#[test]
fn a_cohort_is_looked_at_until_its_last_flow_has_ended() {
    let mut network = Flows::default();
    let links = [network.add_link(GIGABYTE), network.add_link(GIGABYTE)];
    let first = begin(&mut network, 0, &links[..1], 1000);
    let last = begin(&mut network, 0, &links[1..], 3000);
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    let [(1000, cohort)] = due[..] else { panic!("{due:?}") };
    assert_eq!(finish(&mut network, 999, cohort), (vec![], None));
    assert_eq!(finish(&mut network, 1000, cohort), (vec![first], Some(3000)));
    network.share(1000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due.len(), 1, "the rate of the other one is the same");
    assert_eq!(finish(&mut network, 3000, cohort), (vec![last], None));
    assert!(network.free_cohorts.contains(&cohort));
}

#[test]
fn a_flow_that_goes_on_with_other_bytes_changes_no_rate() {
    let mut network = Flows::default();
    let link = network.add_link(GIGABYTE);
    let flows = [1000, 4000].map(|bytes| begin(&mut network, 0, &[link], bytes));
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    let [(2000, cohort)] = due[..] else { panic!("{due:?}") };
    let mut done = Vec::new();
    assert_eq!(network.finish(2000, cohort, &mut done), Some(8000));
    assert_eq!(done, flows[..1]);
    network.renew(2000, flows[0], 500);
    assert!(network.has_changed());
    network.share(2000, |at, cohort| due.push((at, cohort)));
    assert_eq!(network.flows[flows[1] as usize].since, 0, "the other one is not looked at");
    let (at, other) = due[1];
    assert_eq!((at, finish(&mut network, at, other)), (3000, (vec![flows[0]], None)));
    // The second one has the link for itself then.
    network.share(3000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due[2].0, 5500);
    network.check_fairness(0.0);
}
