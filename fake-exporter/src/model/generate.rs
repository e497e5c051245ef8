//! From logits to a token.

/// The token with the largest logit; of equals, the one with the lowest id. NaN never wins.
///
/// # Examples
///
/// ```
/// assert_eq!(fake_exporter::model::most_likely(&[0.5, 2.0, 2.0, -1.0]), 1);
/// ```
pub fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    let mut largest = f32::NEG_INFINITY;
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > largest {
            (best, largest) = (token, logit);
        }
    }
    best
}

/// The natural logarithm of the token's probability (log-softmax), or `None` if there is no such token.
///
/// # Examples
///
/// ```
/// let logits = [0.0, 0.0, 0.0, 0.0];
/// assert_eq!(fake_exporter::model::log_probability(&logits, 2), Some(-(4f32.ln())));
/// ```
pub fn log_probability(logits: &[f32], token: u32) -> Option<f32> {
    let logit = f64::from(*logits.get(token as usize)?);
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    Some((logit - largest - sum.ln()) as f32)
}
