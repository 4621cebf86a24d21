//! Communication during the next forward pass: the model waits for the parameters of one module after another, and gets
//! only these. candle has no callback before a module computes, so the program marks where one begins.

use crate::error::{Error, Result};
use crate::replica::Replica;

impl Replica {
    /// Waits until the parameters of a module have their values after the last step, and copies them to the model:
    /// those whose name is `module`, or begins with it and a dot; all for the empty name.
    ///
    /// With [`Overlap::Forward`](hexagram_algorithms::Overlap::Forward), a step returns while its parameters are in
    /// progress, and the forward pass calls this before each module, with the names of its `VarBuilder`. A pass that
    /// did not wait for a parameter ends with an error that names it. Without that option, and outside training steps,
    /// it returns immediately; all other calls wait themselves.
    ///
    /// ```
    /// # use candle_core::Tensor;
    /// # use candle_nn::{Linear, Module, loss};
    /// # use hexagram_candle::{Replica, Result};
    /// fn step(replica: &mut Replica, layers: &[(String, Linear)], x: &Tensor, y: &Tensor) -> Result<Tensor> {
    ///     replica.step_with(|replica| {
    ///         let mut x = x.clone();
    ///         for (name, layer) in layers {
    ///             replica.wait_for(name)?;
    ///             x = layer.forward(&x)?;
    ///         }
    ///         Ok(loss::mse(&x, y)?)
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Hexagram`](crate::Error::Hexagram) for an unknown parameter, and the error that ended the communication
    /// of the last step, after which ranks cannot continue.
    pub fn wait_for(&self, module: &str) -> Result<()> {
        let is_in = |name: &str| match name.strip_prefix(module) {
            Some(rest) => module.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        };
        let of_module = self.parameters.iter().enumerate().filter(|(_, entry)| is_in(&entry.name));
        let of_module: Vec<usize> = of_module.map(|(index, _)| index).collect();
        if of_module.is_empty() && !module.is_empty() {
            let what = format!("no parameter of the model is `{module}`, or begins with `{module}.`");
            return self.report_failure(Err(Error::usage(what, "name modules as the VarBuilder does")));
        }
        let lacking: Vec<usize> =
            of_module.into_iter().filter(|index| self.awaited.borrow().contains(index)).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let outcome = self.engine.wait_for(&lacking).map_err(Error::from);
        let publish = |index: &usize| {
            self.parameters[*index].publish(&self.home, &self.engine.parameter(*index)?)?;
            self.awaited.borrow_mut().remove(index);
            Ok(())
        };
        let outcome = outcome.and_then(|()| self.home.exchange(|| lacking.iter().try_for_each(publish)));
        self.report_failure(outcome)
    }
}
