//! The K and V planes of a cache by layer, found by the tensors' names.

use super::{LayoutError, Part, PlacedTensor, Plane};

/// The two planes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlanes {
    /// The layer's number in the model, which need not be its index here.
    pub layer: u32,
    /// Its keys.
    pub k: Plane,
    /// Its values.
    pub v: Plane,
}

/// All attention layers of a cache, by number. Every one has the same cells and streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planes {
    layers: Vec<LayerPlanes>,
}

impl Planes {
    /// Pairs `cache_k_l<L>` with `cache_v_l<L>` by name; other tensors (recurrent state) are left alone.
    ///
    /// # Errors
    /// A K without its V, a repeated one, planes that disagree about cells or streams, or a transposed V of a type that
    /// cannot be.
    pub fn of(tensors: &[PlacedTensor], v_trans: bool) -> Result<Self, LayoutError> {
        let mut halves: Vec<(u32, Part, &PlacedTensor)> = tensors
            .iter()
            .filter_map(|placed| placed.tensor.part_and_layer().map(|(part, layer)| (layer, part, placed)))
            .filter(|(_, part, _)| matches!(part, Part::K | Part::V))
            .collect();
        halves.sort_by_key(|(layer, part, _)| (*layer, *part));

        let mut layers: Vec<LayerPlanes> = Vec::with_capacity(halves.len() / 2);
        for of_layer in halves.chunk_by(|a, b| a.0 == b.0) {
            let layer = of_layer[0].0;
            let (k, v) = match of_layer {
                [(_, Part::K, k), (_, Part::V, v)] => (k, v),
                [(_, Part::K, _)] => return Err(LayoutError::Pairing { layer, problem: "no cache_v" }),
                [(_, Part::V, _)] => return Err(LayoutError::Pairing { layer, problem: "no cache_k" }),
                _ => return Err(LayoutError::Pairing { layer, problem: "a tensor that comes twice" }),
            };
            let planes = LayerPlanes { layer, k: Plane::new(k, false)?, v: Plane::new(v, v_trans)? };
            let first = layers.first().map_or(planes.k, |first| first.k);
            for (placed, plane) in [(k, planes.k), (v, planes.v)] {
                even(placed, "cells", first.cells, plane.cells)?;
                even(placed, "streams", first.streams, plane.streams)?;
            }
            layers.push(planes);
        }
        Ok(Self { layers })
    }

    /// The layers, by ascending number.
    pub fn layers(&self) -> &[LayerPlanes] {
        &self.layers
    }

    /// The planes of the model's layer `layer`.
    ///
    /// # Errors
    /// A layer that has no attention cache.
    pub fn layer(&self, layer: u32) -> Result<&LayerPlanes, LayoutError> {
        match self.layers.binary_search_by_key(&layer, |planes| planes.layer) {
            Ok(index) => Ok(&self.layers[index]),
            Err(_) => Err(LayoutError::NoSuchLayer { layer, available: self.in_words() }),
        }
    }

    /// Positions of one stream; 0 for a cache without attention layers.
    pub fn cells(&self) -> u64 {
        self.layers.first().map_or(0, |first| first.k.cells)
    }

    /// Streams; 0 for a cache without attention layers.
    pub fn streams(&self) -> u64 {
        self.layers.first().map_or(0, |first| first.k.streams)
    }

    fn in_words(&self) -> String {
        match &self.layers[..] {
            [] => "none".to_owned(),
            [only] => format!("only layer {}", only.layer),
            [first, .., last] => format!("{} layers from {} to {}", self.layers.len(), first.layer, last.layer),
        }
    }
}

fn even(placed: &PlacedTensor, what: &'static str, expected: u64, found: u64) -> Result<(), LayoutError> {
    if expected == found {
        return Ok(());
    }
    Err(LayoutError::Uneven { name: placed.tensor.name().to_owned(), what, expected, found })
}
