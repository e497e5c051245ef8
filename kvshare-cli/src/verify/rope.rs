//! Turning K rows as RoPE does, the right way and the wrong ones.

use fake_exporter::model::{Architecture, Model};

/// Which two channels of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Channels 2i and 2i + 1 (`LLAMA_ROPE_TYPE_NORM` in llama.cpp's `include/llama.h`).
    Neighbours,
    /// Channels i and i + n/2 of a head of n (`LLAMA_ROPE_TYPE_NEOX`).
    Halves,
}

impl Pairing {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Neighbours => Self::Halves,
            Self::Halves => Self::Neighbours,
        }
    }
}

/// How a model turns its K rows.
#[derive(Clone, Debug)]
pub struct Rope {
    /// By how much each pair turns from one position to the next, in radians.
    steps: Vec<f64>,
    /// The model's own pairing.
    pub pairing: Pairing,
}

impl Rope {
    /// That of `model`; `None` for an architecture whose pairing is not known here.
    pub fn of(model: &Model) -> Option<Self> {
        let pairing = match model.config().architecture {
            Architecture::Llama => Pairing::Neighbours,
            Architecture::Qwen3 => Pairing::Halves,
            _ => return None,
        };
        Some(Self { steps: model.rope_steps().to_vec(), pairing })
    }

    /// Turns each head of `row` by as much as from position 0 to `positions`, which may lie before it.
    pub fn turn(&self, pairing: Pairing, positions: f64, row: &mut [f32]) {
        let pairs = self.steps.len();
        let turns: Vec<(f64, f64)> = self.steps.iter().map(|step| (positions * step).sin_cos()).collect();
        for head in row.chunks_exact_mut(2 * pairs) {
            for (pair, (sine, cosine)) in turns.iter().enumerate() {
                let (x, y) = match pairing {
                    Pairing::Neighbours => (2 * pair, 2 * pair + 1),
                    Pairing::Halves => (pair, pair + pairs),
                };
                let (left, right) = (f64::from(head[x]), f64::from(head[y]));
                head[x] = (left * cosine - right * sine) as f32;
                head[y] = (left * sine + right * cosine) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_there_and_back_changes_nothing_and_each_pairing_turns_its_own_channels() {
        let rope = Rope { steps: vec![std::f64::consts::FRAC_PI_2, 0.0], pairing: Pairing::Neighbours };
        let row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        for (pairing, turned) in [
            (Pairing::Neighbours, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]),
            (Pairing::Halves, [-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]),
        ] {
            let mut found = row;
            rope.turn(pairing, 1.0, &mut found);
            assert_eq!(found.map(f32::round), turned, "{pairing:?}");
            rope.turn(pairing, -1.0, &mut found);
            assert_eq!(found.map(f32::round), row, "{pairing:?}");
        }
    }
}
