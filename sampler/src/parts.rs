//! The parts of an epoch that different numbers of ranks have drawn.

/// A part of an epoch, drawn by one number of ranks. The next part begins at its end.
///
/// Orders that depend on the number of ranks need the list of earlier parts to find the samples that are left; see
/// [`Sampler::set_parts`](crate::Sampler::set_parts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpochPart {
    /// [`Sampler::grouping`](crate::Sampler::grouping) during the part, from 1 to [`u32::MAX`].
    pub grouping: usize,
    /// Position at its end, counted from the beginning of the epoch.
    pub end: usize,
}

/// Checks parts of an epoch at a position, on ranks with a grouping.
///
/// # Errors
///
/// A description of the first contradiction.
pub(crate) fn check(parts: &[EpochPart], position: usize, grouping: usize) -> Result<(), String> {
    let allowed = 1..=u32::MAX as usize;
    let groupings = parts.iter().map(|part| part.grouping).chain([grouping]);
    if let Some(grouping) = groupings.into_iter().find(|grouping| !allowed.contains(grouping)) {
        return Err(format!("a grouping is {grouping}, which is not from 1 to {}", u32::MAX));
    }
    let mut begin = 0;
    for &EpochPart { end, .. } in parts {
        if end <= begin || end > position {
            return Err(format!(
                "a part of the epoch from {begin} to {end} contradicts the position {position}"
            ));
        }
        begin = end;
    }
    Ok(())
}

/// Returns the position at which the part after these begins.
pub(crate) fn start(parts: &[EpochPart]) -> usize {
    parts.last().map_or(0, |part| part.end)
}

/// Returns the samples of `pool`, in the same order, that the parts have not drawn. At the beginning, `pool` has all
/// samples. `drawn` takes the samples that a part began with, its grouping and its number of positions, and returns the
/// samples that the ranks drew in it.
///
/// All groupings above the number of samples draw the same ones. `drawn` gets the smallest of them, so that its time and
/// memory do not depend on the grouping of a checkpoint.
pub(crate) fn left(
    mut pool: Vec<u32>,
    parts: &[EpochPart],
    mut drawn: impl FnMut(&[u32], usize, usize) -> Vec<usize>,
) -> Vec<u32> {
    let mut is_drawn = vec![false; if parts.is_empty() { 0 } else { pool.len() }];
    let mut begin = 0;
    for part in parts {
        for sample in drawn(&pool, part.grouping.clamp(1, pool.len() + 1), part.end.saturating_sub(begin)) {
            is_drawn[sample] = true;
        }
        pool.retain(|sample| !is_drawn[*sample as usize]);
        begin = part.end;
    }
    pool
}
