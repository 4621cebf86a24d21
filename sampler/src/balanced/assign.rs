//! Assignment of the samples of a step to ranks, so that all finish at the same time.
//!
//! ```text
//! longest first   the samples by falling cost, each to the rank that would finish it first: the least
//!                 (load + cost) / speed; when only as many are left as ranks that have none, to one of those
//! even out        while the slowest rank takes 0.1 % longer than if all finished together: of all moves of one of its
//!                 samples to another rank, alone or for another one, that which leaves the two the least maximum; to
//!                 the fastest rank if that shortens the step, else to the next
//! ```
//!
//! Source: Graham, "Bounds on multiprocessing timing anomalies" (SIAM J. Appl. Math. 17, 1969); for unequal speeds,
//! Gonzalez, Ibarra and Sahni, "Bounds for LPT schedules on uniform processors" (SIAM J. Comput. 6, 1977).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tolerated excess of the time of the slowest rank over the mean.
const EVEN: f64 = 0.001;

/// Returns, for each rank, the ascending indices of its samples in `costs`. Speeds must be positive.
///
/// With fewer samples than ranks, the first ranks get one each; otherwise every rank gets at least one. Takes time
/// proportional to the number of samples times the number of different speeds, except for steps that are hard to
/// balance.
pub(crate) fn assign(costs: &[f64], speeds: &[f64]) -> Vec<Vec<usize>> {
    let mut ranks = if costs.len() < speeds.len() {
        (0..speeds.len()).map(|rank| (rank..costs.len()).take(1).collect()).collect()
    } else {
        let mut ranks = longest_first(costs, speeds);
        even_out(&mut ranks, costs, speeds);
        ranks
    };
    ranks.iter_mut().for_each(|places| places.sort_unstable());
    ranks
}

/// Ranks of equal speed. The top is the least loaded rank; of equally loaded ranks, the one with the fewest samples.
/// Loads are not negative, so that their bits sort like their values.
struct Class {
    speed: f64,
    ranks: BinaryHeap<Reverse<(u64, usize, usize)>>,
}

fn classes(speeds: &[f64]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (rank, &speed) in speeds.iter().enumerate() {
        let idle = Reverse((0, 0, rank));
        match classes.iter_mut().find(|class| class.speed == speed) {
            Some(class) => class.ranks.push(idle),
            None => classes.push(Class { speed, ranks: BinaryHeap::from([idle]) }),
        }
    }
    classes
}

fn longest_first(costs: &[f64], speeds: &[f64]) -> Vec<Vec<usize>> {
    let mut longest: Vec<usize> = (0..costs.len()).collect();
    longest.sort_by(|one, other| costs[*other].total_cmp(&costs[*one]));
    let mut classes = classes(speeds);
    let mut idle = speeds.len();
    let mut assigned = vec![Vec::new(); speeds.len()];
    for (done, place) in longest.into_iter().enumerate() {
        let only_idle = costs.len() - done <= idle;
        let finish = |class: &mut Class| {
            let Reverse((load, count, rank)) = *class.ranks.peek()?;
            let time = (f64::from_bits(load) + costs[place]) / class.speed;
            (count == 0 || !only_idle).then_some((time.to_bits(), count, rank))
        };
        let soonest = classes.iter_mut().filter_map(|class| Some((finish(class)?, class)));
        let Some((_, class)) = soonest.min_by_key(|(finish, _)| *finish) else { continue };
        let Some(mut top) = class.ranks.peek_mut() else { continue };
        let Reverse((load, count, rank)) = *top;
        *top = Reverse(((f64::from_bits(load) + costs[place]).to_bits(), count + 1, rank));
        idle -= usize::from(count == 0);
        assigned[rank].push(place);
    }
    assigned
}

fn even_out(ranks: &mut [Vec<usize>], costs: &[f64], speeds: &[f64]) {
    let sum = |places: &Vec<usize>| places.iter().map(|place| costs[*place]).sum::<f64>();
    let mut loads: Vec<f64> = ranks.iter().map(sum).collect();
    let enough = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>() * (1.0 + EVEN);
    // Every move shortens the longest time, or reduces the number of ranks with that time; few moves come near the
    // best.
    for _ in 0..4 * ranks.len() {
        let time = |rank: &usize| loads[*rank] / speeds[*rank];
        let mut fastest: Vec<usize> = (0..ranks.len()).collect();
        fastest.sort_by(|one, other| time(one).total_cmp(&time(other)));
        let Some(slow) = fastest.pop().filter(|slow| time(slow) > enough) else { return };
        let better = |fast: &usize| {
            let longest = |moved: f64| {
                ((loads[slow] - moved) / speeds[slow]).max((loads[*fast] + moved) / speeds[*fast])
            };
            let found = best_move(&ranks[slow], &ranks[*fast], costs, longest)?;
            (found.0 < time(&slow)).then_some((*fast, found.1, found.2))
        };
        let Some((fast, give, take)) = fastest.iter().find_map(better) else { return };
        let given = ranks[slow].swap_remove(give);
        let taken = take.map(|take| ranks[fast].swap_remove(take));
        ranks[fast].push(given);
        ranks[slow].extend(taken);
        let moved = costs[given] - taken.map_or(0.0, |taken| costs[taken]);
        loads[slow] -= moved;
        loads[fast] += moved;
    }
}

/// Returns the best exchange for the slow rank, if any: the sample it gives, the sample it takes in return, and the
/// resulting time.
fn best_move(
    slow: &[usize],
    fast: &[usize],
    costs: &[f64],
    longest: impl Fn(f64) -> f64,
) -> Option<(f64, usize, Option<usize>)> {
    let alone = (slow.len() > 1).then_some((None, 0.0));
    let taken: Vec<_> =
        fast.iter().enumerate().map(|(at, place)| (Some(at), costs[*place])).chain(alone).collect();
    let moves = slow.iter().enumerate().flat_map(|(give, place)| {
        let given = costs[*place];
        taken.iter().map(move |(take, taken)| (given - taken, give, *take))
    });
    moves
        .map(|(moved, give, take)| (longest(moved), give, take))
        .min_by(|one, other| one.0.total_cmp(&other.0))
}
