//! Selects arithmetic by the float type of a buffer, for optimizers and hooks.

/// Runs `$body` with `$T` as the float type of the buffers, f32 or f64.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            hexagram_logical::DType::F32 => {
                type $T = f32;
                $body
            }
            hexagram_logical::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err(hexagram_logical::Error::usage(
                format!("arithmetic on parameters of {other} is not supported"),
                "use f32 or f64",
            )),
        }
    };
}
pub(crate) use with_float;
