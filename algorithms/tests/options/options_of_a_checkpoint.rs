//! A checkpoint of an algorithm with other options: its state would have a different meaning.

use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer};
use std::sync::Arc;

fn trainer(comm: &Communicator, period: u64) -> Result<Trainer<f32>> {
    Trainer::new(
        comm,
        Arc::new(LocalSgd { period, ..LocalSgd::default() }),
        Setup::default(),
        &[vec![1.0; 4]],
    )
}

#[test]
fn it_is_refused_and_loads_into_what_was_saved_which_may_then_switch() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut saved = trainer(&comm, 3)?;
        saved.step(|_, x| x.to_vec())?;
        let record = saved.engine().checkpoint().save()?;
        let text = trainer(&comm, 4)?.engine().checkpoint().load(record).unwrap_err().to_string();
        assert!(text.contains("period: 3") && text.contains("period: 4"), "{text}");
        Ok(())
    })
    .unwrap();
    spawn(TransportKind::Thread, 2, |comm| {
        let mut saved = trainer(&comm, 3)?;
        saved.step(|_, x| x.to_vec())?;
        let record = saved.engine().checkpoint().save()?;
        let mut loaded = trainer(&comm, 3)?;
        loaded.engine().checkpoint().load(record)?;
        loaded.engine().switch(Arc::new(LocalSgd { period: 4, ..LocalSgd::default() }))?;
        loaded.step(|_, x| x.to_vec())?;
        assert_eq!(loaded.engine().steps(), 2);
        Ok(())
    })
    .unwrap();
}
