use super::*;

/// Returns the roster of `processes` processes, none of which has started.
fn starting(processes: u64, least: usize) -> Roster {
    let mut roster = Roster::new(least);
    (0..processes).for_each(|_| roster.will_start());
    roster
}

/// Returns the roster of `processes` processes, all of which have started and are ready, and so run in generation 1.
fn running(processes: u64, least: usize) -> Roster {
    let mut roster = starting(processes, least);
    (0..processes).for_each(|process| drop(roster.started(process)));
    for process in 0..processes {
        let actions = roster.request(process, MemberRequest::Ready);
        assert_eq!(begun(&actions).is_some(), process + 1 == processes);
    }
    roster
}

/// Returns the processes of the generation that begins with these actions, by rank.
fn begun(actions: &[Action]) -> Option<Vec<ProcessId>> {
    let member = |action: &Action| match action {
        Action::Send(process, MemberNotice::Generation { rank, .. }) => Some((*rank, *process)),
        _ => None,
    };
    let members: BTreeMap<usize, ProcessId> = actions.iter().filter_map(member).collect();
    let is_begun = actions.iter().any(|action| matches!(action, Action::Begun { .. }));
    assert_eq!(is_begun, !members.is_empty());
    is_begun.then(|| members.into_values().collect())
}

/// Returns the processes that are notified of a change.
fn notified(actions: &[Action]) -> Vec<ProcessId> {
    let changed = |action: &Action| match action {
        Action::Send(process, MemberNotice::Changed { .. }) => Some(*process),
        _ => None,
    };
    actions.iter().filter_map(changed).collect()
}

#[test]
fn survivors_keep_their_order_and_newcomers_follow() {
    let mut roster = running(4, 1);
    assert_eq!(notified(&roster.ended(1, Some("died"))), [0, 2, 3]);
    roster.will_start();
    roster.started(4);
    assert_eq!(begun(&roster.request(3, MemberRequest::Ready)), None);
    assert_eq!(roster.late(), [0, 2]);
    assert_eq!(begun(&roster.request(4, MemberRequest::Ready)), None);
    assert_eq!(begun(&roster.request(0, MemberRequest::Ready)), None);
    assert_eq!(begun(&roster.request(2, MemberRequest::Ready)), Some(vec![0, 2, 3, 4]));
    assert!(roster.late().is_empty() && roster.generation() == 2);
}

#[test]
fn survivors_do_not_wait_for_a_newcomer_which_changes_the_generation_later() {
    let mut roster = running(3, 2);
    roster.ended(0, Some("died"));
    roster.will_start();
    roster.started(3);
    roster.request(1, MemberRequest::Ready);
    assert_eq!(begun(&roster.request(2, MemberRequest::Ready)), Some(vec![1, 2]));
    assert_eq!(notified(&roster.request(3, MemberRequest::Ready)), [1, 2]);
    roster.request(2, MemberRequest::Ready);
    assert_eq!(begun(&roster.request(1, MemberRequest::Ready)), Some(vec![1, 2, 3]));
}

#[test]
fn newcomers_that_start_together_join_together_or_once_they_are_admitted() {
    let mut roster = running(2, 1);
    for process in [2, 3] {
        roster.will_start();
        roster.started(process);
    }
    assert!(roster.request(2, MemberRequest::Ready).is_empty() && roster.has_waiting_newcomers());
    assert_eq!(notified(&roster.request(3, MemberRequest::Ready)), [0, 1]);
    roster.request(0, MemberRequest::Ready);
    assert_eq!(begun(&roster.request(1, MemberRequest::Ready)), Some(vec![0, 1, 2, 3]));
    for process in [4, 5, 6] {
        roster.will_start();
        roster.started(process);
    }
    roster.will_start();
    assert!(roster.request(4, MemberRequest::Ready).is_empty());
    assert!(roster.ended(5, Some("died")).is_empty());
    assert_eq!(notified(&roster.admit()), [0, 1, 2, 3]);
    assert!(roster.admit().is_empty());
    (0..3).for_each(|process| drop(roster.request(process, MemberRequest::Ready)));
    assert_eq!(begun(&roster.request(3, MemberRequest::Ready)), Some(vec![0, 1, 2, 3, 4]));
    // The last of those that start is missing.
    assert!(roster.request(6, MemberRequest::Ready).is_empty());
    assert_eq!(notified(&roster.will_not_start(1)), [0, 1, 2, 3, 4]);
}

#[test]
fn too_few_survivors_wait_for_newcomers_and_without_them_the_job_is_hopeless() {
    let mut roster = running(2, 2);
    roster.ended(1, Some("died"));
    assert!(roster.is_hopeless() && roster.has_failed());
    roster.will_start();
    assert!(!roster.is_hopeless());
    assert_eq!(begun(&roster.request(0, MemberRequest::Ready)), None);
    roster.started(2);
    assert_eq!(begun(&roster.request(2, MemberRequest::Ready)), Some(vec![0, 2]));
    assert!(!roster.has_failed());
}

#[test]
fn the_first_generation_waits_for_every_process_that_may_still_start() {
    let mut roster = starting(2, 1);
    roster.started(0);
    assert_eq!(begun(&roster.request(0, MemberRequest::Ready)), None);
    roster.started(1);
    assert!(begun(&roster.ended(1, Some("exited with code 1"))).is_some());
    assert!(!roster.has_failed());
}

#[test]
fn a_death_while_a_generation_forms_is_no_second_change() {
    let mut roster = running(4, 1);
    assert_eq!(notified(&roster.ended(0, Some("died"))).len(), 3);
    roster.request(1, MemberRequest::Ready);
    roster.request(2, MemberRequest::Ready);
    let actions = roster.ended(3, Some("died"));
    assert!(notified(&actions).is_empty());
    assert_eq!(begun(&actions), Some(vec![1, 2]));
}

#[test]
fn a_rank_that_asks_for_the_next_generation_ends_that_of_the_others() {
    let mut roster = running(3, 1);
    assert_eq!(notified(&roster.request(1, MemberRequest::Ready)), [0, 1, 2]);
}

#[test]
fn the_end_of_a_job_with_success_is_no_change_and_newcomers_are_dismissed() {
    let mut roster = running(3, 3);
    roster.will_start();
    roster.started(3);
    let actions = roster.ended(0, None);
    assert_eq!(actions, [Action::Dismiss(3)]);
    assert!(!roster.is_hopeless() && roster.is_finishing());
    assert!(roster.request(3, MemberRequest::Ready).is_empty() && roster.admit().is_empty());
    roster.will_start();
    assert_eq!(roster.started(4), [Action::Dismiss(4)]);
    roster.ended(4, Some("was killed"));
    roster.ended(3, Some("was killed"));
    assert!(!roster.has_failed());
    // A survivor that was one step behind finishes alone.
    roster.ended(1, Some("died"));
    assert!(roster.has_failed());
    assert_eq!(begun(&roster.request(2, MemberRequest::Ready)), Some(vec![2]));
    roster.ended(2, None);
    assert!(!roster.has_failed());
}

#[test]
fn a_death_before_the_first_success_does_not_make_the_job_a_failure() {
    let mut roster = running(3, 1);
    roster.ended(2, Some("died"));
    roster.will_start();
    assert!(roster.has_failed() && roster.remaining() == 3);
    roster.ended(0, None);
    roster.will_not_start(1);
    assert!(!roster.has_failed() && roster.remaining() == 1);
    roster.ended(1, None);
    assert!(!roster.has_failed());
}

#[test]
fn a_newcomer_that_is_dismissed_does_not_begin_the_work_again() {
    let mut roster = running(1, 1);
    roster.will_start();
    roster.started(1);
    assert_eq!(notified(&roster.request(1, MemberRequest::Ready)), [0]);
    assert_eq!(roster.ended(0, None), [Action::Dismiss(1)]);
}

#[test]
fn a_newcomer_that_ends_with_success_finishes_nothing() {
    let mut roster = running(2, 2);
    roster.will_start();
    roster.started(2);
    assert!(roster.ended(2, None).is_empty() && !roster.is_finishing());
}

#[test]
fn ranks_that_have_left_are_not_missing() {
    let mut roster = running(3, 3);
    roster.ended(0, None);
    roster.request(1, MemberRequest::Ready);
    assert!(begun(&roster.request(2, MemberRequest::Ready)).is_some());
    assert!(!roster.is_hopeless());
    roster.ended(1, Some("died"));
    assert!(roster.is_hopeless());
}

#[test]
fn processes_that_never_join_may_end_with_success() {
    let mut roster = starting(2, 2);
    roster.started(0);
    roster.started(1);
    assert!(roster.ended(0, None).is_empty() && !roster.is_hopeless());
    assert!(roster.ended(1, None).is_empty() && !roster.is_hopeless());
}

#[test]
fn members_are_accused_in_their_generation_only() {
    let mut roster = running(4, 1);
    assert!(!roster.is_accused(3));
    roster.request(2, MemberRequest::Failed { generation: 0, rank: 1 });
    roster.request(2, MemberRequest::Failed { generation: 1, rank: 9 });
    for process in [0, 1, 2] {
        roster.request(process, MemberRequest::Failed { generation: 1, rank: 3 });
        roster.request(process, MemberRequest::Ready);
    }
    assert_eq!(roster.late(), [3]);
    assert_eq!([0, 1, 2, 3, 9].map(|process| roster.is_accused(process)), [false, false, false, true, false]);
    assert_eq!(begun(&roster.ended(3, Some("was killed"))), Some(vec![0, 1, 2]));
    roster.request(1, MemberRequest::Failed { generation: 1, rank: 0 });
    assert!([0, 3].iter().all(|process| !roster.is_accused(*process)));
}

#[test]
fn no_generation_begins_with_a_part_of_a_machine_that_is_lost() {
    let mut roster = running(4, 1);
    roster.ended(0, Some("died"));
    roster.request(1, MemberRequest::Ready);
    roster.request(2, MemberRequest::Ready);
    assert_eq!(begun(&roster.lost(&[3, 2], 0)), Some(vec![1]));
}
