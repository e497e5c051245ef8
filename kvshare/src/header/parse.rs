//! From bytes to a header that holds together.

use super::arrangement::check_arrangement;
use super::fields::{Fields, Place, wrong};
use super::strict_json::Json;
use super::{
    Header, HeaderError, MAX_BYTES, MAX_NAME_BYTES, MAX_REGIONS, ModelIdentity, Params, Region, VERSION, strict_json,
};
use crate::layout::{PlacedTensor, Tensor};

impl Header {
    /// Reads and checks a header as it crossed the socket.
    ///
    /// A digest is compared before anything else in the header is believed. What depends on the descriptors is left to
    /// [`Header::check_descriptors`].
    ///
    /// # Errors
    /// One variant of [`HeaderError`] for each way a header can be wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() > MAX_BYTES {
            return Err(HeaderError::TooLong { length: bytes.len(), limit: MAX_BYTES });
        }
        let text =
            std::str::from_utf8(bytes).map_err(|error| HeaderError::NotUtf8 { position: error.valid_up_to() })?;
        let value = strict_json::parse(text)?;
        let top = Fields::of(Place::Top, &value)?;
        if top.optional("version").is_some() {
            let value = top.u64("version")?;
            if value != VERSION {
                return Err(HeaderError::UnknownVersion { value, known: VERSION });
            }
        }
        let header = Self {
            model: top.optional("model").map(model).transpose()?,
            params: top.optional("params").map(params).transpose()?,
            regions: regions(&top)?,
            tensors: top.optional("tensors").map(|_| tensors(&top)).transpose()?.unwrap_or_default(),
        };
        if top.optional("digest").is_some() {
            header.check_digest(top.text("digest")?)?;
        }
        header.check()?;
        Ok(header)
    }
}

fn model(value: &Json<'_>) -> Result<ModelIdentity, HeaderError> {
    let fields = Fields::of(Place::Field("model"), value)?;
    let sha256 = match fields.optional("sha256") {
        Some(_) => Some(fields.text("sha256")?.to_owned()),
        None => None,
    };
    Ok(ModelIdentity { name: fields.text("name")?.to_owned(), sha256 })
}

fn params(value: &Json<'_>) -> Result<Params, HeaderError> {
    let fields = Fields::of(Place::Field("params"), value)?;
    Ok(Params {
        n_ctx: fields.u32("n_ctx")?,
        n_batch: fields.u32("n_batch")?,
        n_ubatch: fields.u32("n_ubatch")?,
        flash_attn: fields.bool("flash_attn")?,
        type_k: fields.tensor_type("type_k")?,
        type_v: fields.tensor_type("type_v")?,
        v_trans: fields.bool("v_trans")?,
        n_stream: fields.u32("n_stream")?,
        n_rot_k: fields.u32("n_rot_k")?,
        n_rot_v: fields.u32("n_rot_v")?,
    })
}

fn regions(top: &Fields<'_>) -> Result<Vec<Region>, HeaderError> {
    let list = top.array("regions")?;
    match list.len() {
        0 => return Err(HeaderError::NoRegions),
        count if count > MAX_REGIONS => return Err(HeaderError::TooManyRegions { count, limit: MAX_REGIONS }),
        _ => {}
    }
    list.iter().enumerate().map(|(index, value)| region(Place::Element("regions", index), value)).collect()
}

fn region(place: Place, value: &Json<'_>) -> Result<Region, HeaderError> {
    let fields = Fields::of(place, value)?;
    let group = match fields.optional("group") {
        Some(_) => fields.u32("group")?,
        None => 0,
    };
    let offset = match fields.optional("offset") {
        Some(_) => fields.u64("offset")?,
        None => 0,
    };
    check_arrangement(&fields)?;
    Ok(Region {
        fd: fields.index("fd")?,
        offset,
        size: fields.u64("size")?,
        layout: fields.u64_or_text("layout")?,
        group,
    })
}

fn tensors(top: &Fields<'_>) -> Result<Vec<PlacedTensor>, HeaderError> {
    let list = top.array("tensors")?.iter().enumerate();
    list.map(|(index, value)| tensor(Place::Element("tensors", index), value)).collect()
}

fn tensor(place: Place, value: &Json<'_>) -> Result<PlacedTensor, HeaderError> {
    let fields = Fields::of(place, value)?;
    let mut ne = [0; 4];
    let dimensions = fields.array("ne")?;
    if dimensions.len() > ne.len() {
        return Err(wrong(fields.path("ne"), dimensions.len(), "a list of one to four dimensions"));
    }
    for (index, dimension) in dimensions.iter().enumerate() {
        ne[index] = dimension.as_u64().ok_or_else(|| {
            wrong(fields.path(format!("ne[{index}]")), dimension, "a whole number from 1 to 2^64 - 1")
        })?;
    }
    let name = fields.text("name")?;
    if name.len() > MAX_NAME_BYTES {
        return Err(HeaderError::LongName { field: fields.path("name"), length: name.len(), limit: MAX_NAME_BYTES });
    }
    let tensor = Tensor::new(name, fields.tensor_type("type")?, &ne[..dimensions.len()])
        .map_err(|problem| HeaderError::Tensor { field: fields.path("ne"), problem })?;
    Ok(PlacedTensor { tensor, region: fields.index("region")?, offset: fields.u64("offset")? })
}
