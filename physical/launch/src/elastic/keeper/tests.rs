mod simulation;

use super::*;
use crate::Node;
use hexagram_physical::launcher::MemberRequest;
use tokio::sync::mpsc::UnboundedReceiver;

const RANKS: usize = 2;

/// A job on machines with two ranks each.
fn job(nodes: usize, max_restarts: u32) -> Job {
    let node = Node { number: 0, nodes, least: 1, address: String::new(), secret: "".into() };
    Job { node: Some(node), max_restarts, ..Job::new(RANKS, "program") }
}

/// A job with two ranks on each of two machines, whose processes are 0 and 1 here, and 2 and 3 there. Returns the lines to there.
fn running(least: usize) -> (Keeper, UnboundedReceiver<String>) {
    let mut keeper = Keeper::new(&job(2, 1), least);
    let (launcher, mut lines) = LineSender::channel();
    keeper.arrived(0, None);
    keeper.machine(MachineEvent::Arrived(1, launcher));
    assert_eq!(starts(&keeper.take_orders()), [(0, 0, 0), (1, 1, 0)]);
    assert_eq!(starts(&received(&mut lines)), [(2, 2, 0), (3, 3, 0)]);
    for process in 0..4 {
        start(&mut keeper, process);
    }
    assert_eq!(generations(&keeper.take_orders(), &received(&mut lines)), [0, 1, 2, 3]);
    (keeper, lines)
}

/// Starts a process, which joins.
fn start(keeper: &mut Keeper, process: ProcessId) {
    let node = usize::from(keeper.processes[&process].place > 1);
    assert!(keeper.report(node, MemberReport::Started(process, process as i32 + 100)));
    assert!(keeper.report(node, MemberReport::Request(process, MemberRequest::Ready)));
}

fn received(lines: &mut UnboundedReceiver<String>) -> Vec<MemberOrder> {
    let lines = std::iter::from_fn(|| lines.try_recv().ok());
    lines
        .filter_map(|line| line.strip_prefix("member ").map(|text| MemberOrder::parse(text).unwrap()))
        .collect()
}

fn starts(orders: &[MemberOrder]) -> Vec<(ProcessId, usize, u32)> {
    let start = |order: &MemberOrder| match order {
        MemberOrder::Start { process, place, newcomer } => Some((*process, *place, *newcomer)),
        _ => None,
    };
    orders.iter().filter_map(start).collect()
}

/// Returns the processes that are sent a generation.
fn generations(here: &[MemberOrder], there: &[MemberOrder]) -> Vec<ProcessId> {
    let member = |order: &MemberOrder| match order {
        MemberOrder::Send(process, notice) => {
            let notice = MemberNotice::split(&mut notice.clone()).unwrap();
            matches!(notice, Some(MemberNotice::Generation { .. })).then_some(*process)
        }
        _ => None,
    };
    here.iter().chain(there).filter_map(member).collect()
}

#[test]
fn the_processes_of_a_machine_that_is_gone_are_not_replaced_until_it_returns() {
    let (mut keeper, mut lines) = running(1);
    keeper.machine(MachineEvent::Gone(1));
    for process in [0, 1] {
        keeper.report(0, MemberReport::Request(process, MemberRequest::Ready));
    }
    assert_eq!(generations(&keeper.take_orders(), &[]), [0, 1]);
    assert!(keeper.starts.is_empty() && received(&mut lines).is_empty());
    // A late message of that machine is ignored.
    keeper.machine(MachineEvent::Message(1, "ended 2".into()));
    let (launcher, mut lines) = LineSender::channel();
    keeper.machine(MachineEvent::Arrived(1, launcher));
    assert_eq!(starts(&received(&mut lines)), [(4, 2, 1), (5, 3, 2)]);
}

#[test]
fn a_machine_that_is_gone_before_its_processes_have_started_is_not_waited_for() {
    let mut keeper = Keeper::new(&Job::new(2, "program"), 1);
    keeper.arrived(0, None);
    let (launcher, _lines) = LineSender::channel();
    keeper.machine(MachineEvent::Arrived(1, launcher));
    start(&mut keeper, 0);
    start(&mut keeper, 1);
    assert!(generations(&keeper.take_orders(), &[]).is_empty());
    keeper.machine(MachineEvent::Gone(1));
    assert_eq!(generations(&keeper.take_orders(), &[]), [0, 1]);
}

#[test]
fn a_report_about_a_process_of_another_machine_ends_the_part_of_the_sender() {
    for line in ["ended 0", "ended 9", "ends 2", "request 2 zz"] {
        let (mut keeper, mut lines) = running(1);
        keeper.machine(MachineEvent::Message(1, line.into()));
        let said = std::iter::from_fn(|| lines.try_recv().ok()).last().unwrap();
        assert!(said.starts_with("refused node 1 "), "{line}: {said}");
        assert!(!keeper.machines.contains_key(&1));
    }
}

#[test]
fn a_process_is_replaced_on_its_machine_within_the_limit() {
    let (mut keeper, mut lines) = running(1);
    for process in [2, 3] {
        keeper.report(1, MemberReport::Ended(process, Some("died".into())));
    }
    assert_eq!(keeper.starts.len(), 1);
    keeper.starts[0].0 = Instant::now();
    keeper.timer();
    assert_eq!(starts(&received(&mut lines)), [(4, 2, 1)]);
}

#[test]
fn a_late_process_is_killed_and_then_its_machine_counts_as_gone() {
    let (mut keeper, mut lines) = running(1);
    keeper.report(0, MemberReport::Request(0, MemberRequest::Failed { generation: 1, rank: 2 }));
    for process in [0, 1] {
        keeper.report(0, MemberReport::Request(process, MemberRequest::Ready));
    }
    assert!(keeper.late[&2] < keeper.late[&3], "accused");
    keeper.late.insert(2, Instant::now());
    keeper.timer();
    assert!(received(&mut lines).contains(&MemberOrder::Kill(2)));
    assert!(keeper.awaited.contains_key(&2) && !keeper.late.contains_key(&2));
    keeper.awaited.insert(2, Instant::now());
    keeper.timer();
    assert!(std::iter::from_fn(|| lines.try_recv().ok()).any(|line| line.starts_with("refused node 1 ")));
    assert_eq!(generations(&keeper.take_orders(), &[]), [0, 1]);
    assert!(keeper.late.is_empty() && keeper.awaited.is_empty());
}

#[test]
fn the_outcome_is_that_of_the_first_failure_after_which_none_has_continued() {
    let (mut keeper, mut lines) = running(4);
    keeper.report(1, MemberReport::Ended(3, Some("exited with code 7".into())));
    keeper.starts.clear();
    assert_eq!(keeper.failure(), Some((1, "rank 3 (pid 103 on node 1) exited with code 7".into())));
    keeper.finish();
    assert!(!received(&mut lines).contains(&MemberOrder::Over));
    let (mut keeper, mut lines) = running(1);
    keeper.report(1, MemberReport::Ended(3, Some("exited with code 7".into())));
    for process in [0, 1] {
        keeper.report(0, MemberReport::Ended(process, None));
    }
    assert!(keeper.is_active() && keeper.failure().is_none());
    assert!(received(&mut lines).contains(&MemberOrder::Continued));
    keeper.report(1, MemberReport::Ended(2, None));
    assert!(!keeper.is_active());
    keeper.finish();
    assert_eq!(received(&mut lines), [MemberOrder::Over]);
}
