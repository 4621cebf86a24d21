//! Gradients that arrive by rows, or are written in place.

use super::*;

/// Five rows of two, and a vector.
fn embedding(dtype: DType) -> Vec<Parameter> {
    let table = Parameter { name: "table".to_owned(), dtype, shape: vec![5, 2] };
    vec![table, parameter("bias", DType::F32, 3)]
}

#[test]
fn rows_are_added_up_and_the_others_are_zero() {
    for transport in transports() {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, embedding(DType::F32), options(400, 400))?;
            for _ in 0..2 {
                engine.begin(Mode::Synchronize)?;
                engine.hooks().ready_slice(1, &[1.0f32; 3])?;
                // Rank 0 has row 1 twice, rank 1 only row 4.
                let (rows, values): (&[usize], &[f32]) = match comm.rank() {
                    0 => (&[1, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
                    _ => (&[4], &[10.0, 20.0]),
                };
                engine.hooks().ready_rows(0, rows, &buffer(values))?;
                engine.finish()?;
                assert_eq!(gradient(&engine, 0), [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.5, 2.0, 5.0, 10.0]);
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn rows_accumulate_and_are_converted() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, embedding(DType::BF16), options(400, 400))?;
        let two = zeroed(DType::BF16, 2);
        two.write_all()?.copy_from_bytes(&[0x80, 0x3f, 0x00, 0x40])?;
        for mode in [Mode::Accumulate, Mode::Accumulate, Mode::Synchronize] {
            engine.begin(mode)?;
            engine.hooks().ready_slice(1, &[1.0f32; 3])?;
            engine.hooks().ready_rows(0, &[2], &two)?;
            engine.finish()?;
        }
        // 3 and 6, in bf16.
        assert_eq!(engine.gradient(0)?.bytes_on_host()?[8..12], [0x40, 0x40, 0xc0, 0x40]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, embedding(DType::F32), options(400, 400))?;
        engine.begin(Mode::Synchronize)?;
        let refused = |rows: &[usize], values: &[f32], what: &str| {
            let outcome = engine.hooks().ready_rows(0, rows, &buffer(values));
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        };
        refused(&[5], &[1.0, 2.0], "`table` has no row 5; it has 5 rows");
        refused(&[0, 1], &[1.0, 2.0], "`table` has 2 rows of 2 × f32 together; give each row 2 × f32");
        assert!(engine.finish().is_err(), "a pass with a mistake in it does not end well");
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_written_in_place_count_like_others() {
    for transport in transports() {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, parameters(3, 4), options(16, 16))?;
            let hooks = engine.hooks();
            for step in 0..3 {
                let add = |value: f32| {
                    for index in [2, 1, 0] {
                        hooks.with_gradient(index, |g: &mut [f32]| g.iter_mut().for_each(|g| *g += value))?;
                        hooks.ready_in_place(index)?;
                    }
                    Ok::<_, Error>(())
                };
                engine.begin(Mode::Accumulate)?;
                add(100.0)?;
                engine.finish()?;
                engine.begin(Mode::Synchronize)?;
                add((comm.rank() + step) as f32)?;
                engine.finish()?;
                assert_eq!(gradient(&engine, 1), [100.5 + step as f32; 4], "zeros at first, in every step");
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_is_written_in_place_is_never_lost() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(2, 2), options(16, 16))?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        // In parts, one of them copied; and one that was never marked.
        hooks.with_gradient(0, |g: &mut [f32]| g[0] += 1.0)?;
        hooks.with_gradient(0, |g: &mut [f32]| g[1] += 2.0)?;
        hooks.ready_slice(0, &[10.0f32; 2])?;
        hooks.with_gradient(1, |g: &mut [f32]| g[0] += 3.0)?;
        engine.finish()?;
        assert_eq!((gradient(&engine, 0), gradient(&engine, 1)), (vec![11.0, 12.0], vec![3.0, 0.0]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn misuse_in_place_is_refused() {
    let refused = |misuse: fn(&Hooks) -> Result<()>, what: &str| {
        spawn(TransportKind::Thread, 1, |comm| {
            let list = vec![parameter("p", DType::F16, 2)];
            let mut engine = engine(&comm, list, options(16, 16))?;
            engine.begin(Mode::Synchronize)?;
            let text = misuse(&engine.hooks()).unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
            Ok(())
        })
        .unwrap();
    };
    refused(|hooks| hooks.ready_in_place(0), "its gradient was not written");
    refused(|hooks| hooks.with_gradient(0, |_: &mut [f64]| ()), "requested as f64; it is f32 in its bucket");
    refused(|hooks| hooks.with_gradient(1, |_: &mut [f32]| ()), "parameter 1 does not exist");
    let twice = |hooks: &Hooks| {
        hooks.with_gradient(0, |_: &mut [f32]| ())?;
        hooks.ready_in_place(0)?;
        hooks.with_gradient(0, |_: &mut [f32]| ())
    };
    refused(twice, "ready twice");
}
