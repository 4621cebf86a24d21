//! What all ranks begin with, and what they share between steps.

use super::*;

#[test]
fn tensors_are_broadcast_from_rank_0() {
    spawn(TransportKind::Tcp, 3, |comm| {
        let engine = engine(&comm, parameters(1, 1), EngineOptions::default())?;
        let mut tensor = Buffer::from_slice(&[comm.rank() as f32 + 7.0; 100])?;
        engine.broadcast(&mut tensor)?;
        assert_eq!(*tensor.host::<f32>()?, [7.0; 100]);
        Ok(())
    })
    .unwrap();
}
