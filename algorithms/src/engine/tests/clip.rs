//! Clipping by the norm of all gradients together.

use super::*;

fn clipping(limit: f64) -> EngineOptions {
    EngineOptions { clip_norm: Some(limit), ..options(4, 4) }
}

#[test]
fn gradients_are_scaled_down_to_the_limit_over_all_buckets() {
    for transport in transports() {
        spawn(transport, 2, |comm| {
            let list = vec![parameter("a", DType::F32, 1), parameter("b", DType::F64, 1)];
            let mut engine = engine(&comm, list, clipping(1.0))?;
            engine.begin(Mode::Synchronize)?;
            // The means are 3 and 4; their norm is 5.
            engine.hooks().ready_slice(1, &[4.0 + 10.0 * (comm.rank() as f64 - 0.5)])?;
            engine.hooks().ready_slice(0, &[3.0f32])?;
            engine.finish()?;
            let b: f64 = bytemuck::pod_read_unaligned(&engine.gradient(1)?.bytes_on_host()?);
            assert!((gradient(&engine, 0)[0] - 0.6).abs() < 1e-7 && (b - 0.8).abs() < 1e-15);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn smaller_gradients_stay_as_they_are() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, parameters(2, 1), clipping(5.0))?;
        pass(&mut engine, Mode::Synchronize, &[vec![3.0], vec![4.0]])?;
        assert_eq!((gradient(&engine, 0), gradient(&engine, 1)), (vec![3.0], vec![4.0]));
        pass(&mut engine, Mode::Synchronize, &[vec![0.0], vec![0.0]])?;
        assert_eq!(gradient(&engine, 0), [0.0]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn all_ranks_clip_alike_bit_for_bit() {
    let found = spawn(TransportKind::Shm, 4, |comm| {
        let mut engine = engine(&comm, parameters(5, 100), clipping(0.1))?;
        let of =
            |p: usize| (0..100).map(|at| ((at * 31 + p * 7 + comm.rank() * 13) % 17) as f32 * 0.3).collect();
        pass(&mut engine, Mode::Synchronize, &(0..5).map(of).collect::<Vec<_>>())?;
        Ok((0..5).flat_map(|index| gradient(&engine, index)).collect::<Vec<_>>())
    });
    let found = found.unwrap();
    let norm = found[0].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    assert!((norm - 0.1).abs() < 1e-7 && found.iter().all(|other| *other == found[0]));
}

#[test]
fn what_has_no_norm_is_an_error_that_names_the_tensor() {
    for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let errors = spawn(TransportKind::Tcp, 3, |comm| {
            let mut engine = engine(&comm, parameters(3, 10), clipping(1.0))?;
            let mut gradients = vec![vec![1.0; 10]; 3];
            gradients[1][7] = if comm.rank() == 1 { value } else { 1.0 };
            Ok(pass(&mut engine, Mode::Synchronize, &gradients).err())
        });
        for error in errors.unwrap() {
            let text = error.unwrap().to_string();
            assert!(text.contains(&format!("element 7 of that of `p1` is {name}")), "{text}");
        }
    }
}

#[test]
fn numbers_whose_squares_are_too_large_are_an_error_too() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, vec![parameter("a", DType::F64, 1)], clipping(1.0))?;
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1e200f64])?;
        let text = engine.finish().unwrap_err().to_string();
        assert!(text.contains("their norm is inf"), "{text}");
        Ok(())
    })
    .unwrap();
}
