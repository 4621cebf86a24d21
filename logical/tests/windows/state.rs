//! The state of a window, saved and restored.

use super::*;

/// Some rounds of everything that is encoded: the bits of this rank's final state.
fn rounds(
    comm: &Communicator,
    window: &Window,
    others: &[usize],
    rounds: std::ops::Range<usize>,
) -> Result<(Vec<u32>, f64, Vec<Option<u64>>)> {
    for round in rounds {
        let step = |at: usize| ((at * 37 + comm.rank() * 11 + round * 53) % 101) as f32 * 0.01;
        window.blocking().add(1.0, &testing::buffer(&(0..70).map(step).collect::<Vec<_>>()))?;
        // A late rank still updates, or saves.
        comm.blocking().barrier()?;
        window.accumulate(0.5, &weighted(others, 0.25)).blocking()?;
        comm.blocking().barrier()?;
        window.blocking().update(1.0, &weighted(others, 1.0), true)?;
        comm.blocking().barrier()?;
        window.get(&weighted(others, 0.5)).blocking()?;
        comm.blocking().barrier()?;
        window.blocking().update(0.5, &weighted(others, 0.5), false)?;
    }
    comm.blocking().barrier()?;
    let bits = value(window, 70).into_iter().map(f32::to_bits).collect();
    Ok((bits, window.mass(), others.iter().map(|other| window.version(*other)).collect()))
}

#[test]
fn what_was_saved_goes_on_bit_for_bit() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            for feedback in [None, Some(Feedback::None), Some(Feedback::Error), Some(Feedback::Difference)] {
                let make = || {
                    let draws = |feedback| -> Result<Encoding> {
                        Ok(Encoding::new(Arc::new(Qsgd::new(7)?)).with_feedback(feedback).with_seed(5))
                    };
                    complete(&comm, &service, 70, feedback.map(draws).transpose()?)
                };
                let (window, others) = make()?;
                rounds(&comm, &window, &others, 0..3)?;
                let saved = window.blocking().save()?;
                let values = window.blocking().save()?;
                let expected = rounds(&comm, &window, &others, 3..6)?;
                let (again, _) = make()?;
                again.blocking().restore(saved)?;
                assert_eq!(rounds(&comm, &again, &others, 3..6)?, expected, "{feedback:?} over {transport}");
                // Draws and memories are part of it.
                let (forgetful, _) = make()?;
                forgetful
                    .blocking()
                    .restore(values.into_iter().filter(|(name, _)| name.starts_with("value of ")))?;
                let differs = rounds(&comm, &forgetful, &others, 3..6)? != expected;
                assert_eq!(differs, feedback.is_some(), "{feedback:?} over {transport}");
                let alone =
                    comm.block_on(Window::create(&comm, &service, &testing::buffer(&[0f32; 70]), &[], None))?;
                let short = complete(&comm, &service, 69, None)?.0;
                for refused in [
                    alone.blocking().restore(window.blocking().save()?),
                    short.blocking().restore(window.blocking().save()?),
                ] {
                    assert!(matches!(refused, Err(Error::Usage { .. })), "{refused:?}");
                }
                comm.blocking().barrier()?;
            }
            service.blocking().close()
        })
        .unwrap();
    }
}
