//! The shape of a model's cache, from which its layout follows.

use super::{Layout, LayoutError, Part, Tensor, TensorType, tensor_name};

/// The widths of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerWidths {
    /// The layer's number in the model.
    pub layer: u32,
    /// Channels of K: KV heads times the key's head size (`n_embd_k_gqa`).
    pub k: u64,
    /// Channels of V (`n_embd_v_gqa`).
    pub v: u64,
}

/// The sizes of one head, by which a quantized cache is rotated (see [`key_rotation`](crate::values::key_rotation)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Channels of one KV head's K (`n_embd_head_k`).
    pub k: u32,
    /// Channels of one KV head's V (`n_embd_head_v`).
    pub v: u32,
}

/// The widths of one recurrent layer's state, in f32 elements a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentWidths {
    /// The layer's number in the model.
    pub layer: u32,
    /// Elements of `cache_r` (`n_embd_r`).
    pub r: u64,
    /// Elements of `cache_s` (`n_embd_s`).
    pub s: u64,
}

/// What a cache consists of: attention layers, and recurrent ones as a group of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Attention layers, in the order of the model.
    pub layers: Vec<LayerWidths>,
    /// Positions of one stream (`kv_size`).
    pub cells: u64,
    /// Streams (`n_stream`).
    pub streams: u64,
    /// The type of K.
    pub type_k: TensorType,
    /// The type of V.
    pub type_v: TensorType,
    /// Recurrent layers, in the order of the model.
    pub recurrent: Vec<RecurrentWidths>,
    /// Cells of the recurrent state: one for each sequence.
    pub recurrent_cells: u64,
}

impl Geometry {
    /// `layers` equal attention layers of one type in one stream, nothing recurrent.
    pub fn uniform(layers: u32, k_width: u64, v_width: u64, cells: u64, tensor_type: TensorType) -> Self {
        Self {
            layers: (0..layers).map(|layer| LayerWidths { layer, k: k_width, v: v_width }).collect(),
            cells,
            streams: 1,
            type_k: tensor_type,
            type_v: tensor_type,
            recurrent: Vec::new(),
            recurrent_cells: 1,
        }
    }

    /// The tensors by group: attention first, then the recurrent state.
    ///
    /// # Errors
    /// Widths or counts that make no tensor.
    pub fn groups(&self) -> Result<Vec<Vec<Tensor>>, LayoutError> {
        let mut attention = Vec::with_capacity(2 * self.layers.len());
        for widths in &self.layers {
            let of = |part, tensor_type, width| {
                Tensor::new(tensor_name(part, widths.layer), tensor_type, &[width, self.cells, self.streams])
            };
            attention.push(of(Part::K, self.type_k, widths.k)?);
            attention.push(of(Part::V, self.type_v, widths.v)?);
        }
        let mut recurrent = Vec::with_capacity(2 * self.recurrent.len());
        for widths in &self.recurrent {
            let of = |part, width| {
                Tensor::new(tensor_name(part, widths.layer), TensorType::F32, &[width, self.recurrent_cells])
            };
            recurrent.push(of(Part::R, widths.r)?);
            recurrent.push(of(Part::S, widths.s)?);
        }
        Ok([attention, recurrent].into_iter().filter(|group| !group.is_empty()).collect())
    }

    /// Where each tensor lies.
    ///
    /// # Errors
    /// Widths or counts that make no tensor.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        Ok(Layout::place(self.groups()?))
    }
}
