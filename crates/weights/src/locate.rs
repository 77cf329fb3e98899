//! The search for a model's tensors in its files.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use motet_formats::Format;
use motet_protocol::ModelError;

use super::blueprint::{Blueprint, Layer, Mixer};
use super::formats::Formats;
use super::located::Located;
use super::mlx::{self, Grouping, MlxQuantisation};
use super::mxfp4;
use super::names::{Container, Form, Name, Values, names_of};
use super::plan::Plan;
use super::role::{Needed, Role, needed};
use super::stored::Directory;

/// The tensors of a model, by layer and role.
pub(super) type Tensors = BTreeMap<(Option<usize>, Role), Located>;

/// Starts of the names of a folder's tensors. Multimodal models wrap their language
/// model in one of several ways.
const ROOTS: [&str; 5] = [
    "model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "",
];

/// The files of one model, while they are searched.
pub(super) struct Search<'a> {
    path: &'a Path,
    container: Container,
    own: &'static [Name],
    directory: &'a Directory,
    root: &'static str,
    /// Whether MLX's converter wrote the folder: norm weights have the 1 added already, and
    /// convolutions are `[channels, kernel, 1]`.
    by_mlx_converter: bool,
    /// The forms of modules that are quantised as MLX does it.
    pub(super) quantisation: Option<&'a MlxQuantisation>,
    used: HashSet<String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        path: &'a Path,
        container: Container,
        own: &'static [Name],
        directory: &'a Directory,
    ) -> Self {
        let has_root = |root: &&str| directory.contains_key(&format!("{root}embed_tokens.weight"));
        let by_mlx_converter = directory.iter().any(|(name, stored)| {
            name.ends_with("linear_attn.conv1d.weight")
                && matches!(stored.shape[..], [_, kernel, 1] if kernel > 1)
        });
        Self {
            path,
            container,
            own,
            directory,
            root: ROOTS.into_iter().find(has_root).unwrap_or(ROOTS[0]),
            by_mlx_converter,
            quantisation: None,
            used: HashSet::new(),
        }
    }

    /// Finds and checks every tensor of the model.
    pub(super) fn run(&mut self, blueprint: &Blueprint) -> Result<Tensors, ModelError> {
        let mut tensors = Tensors::new();
        for needed in needed(blueprint) {
            let layer = needed.layer.map(|index| &blueprint.layers[index]);
            let located = self.locate(blueprint, layer, &needed)?;
            tensors.insert((needed.layer, needed.role), located);
        }
        Ok(tensors)
    }

    /// The index of the layer that a tensor belongs to, by its name.
    pub(super) fn layer_of(&self, name: &str) -> Option<usize> {
        let start = self.layer_prefix(0);
        let start = start.strip_suffix("0.")?;
        let (index, _) = name.strip_prefix(start)?.split_once('.')?;
        index.parse().ok()
    }

    pub(super) fn is_gguf(&self) -> bool {
        self.container == Container::Gguf
    }

    /// The file of one of the files' tensors.
    pub(super) fn file_of(&self, name: &str) -> &Path {
        let stored = self.directory.get(name);
        stored.map_or(self.path, |stored| stored.file.path())
    }

    /// Prefix of a layer's tensors.
    fn layer_prefix(&self, layer: usize) -> String {
        match self.container {
            Container::HuggingFace => format!("{}layers.{layer}.", self.root),
            Container::Gguf => format!("blk.{layer}."),
        }
    }

    /// Names of the files' tensors that no role uses.
    pub(super) fn unused(&self) -> impl Iterator<Item = &str> {
        let names = self.directory.keys().map(String::as_str);
        names.filter(|name| !self.used.contains(*name))
    }

    fn locate(
        &mut self,
        blueprint: &Blueprint,
        layer: Option<&Layer>,
        needed: &Needed,
    ) -> Result<Located, ModelError> {
        let attends = layer.is_none_or(|layer| matches!(layer.mixer, Mixer::Attention(_)));
        let names = names_of(self.own, self.container, needed.role, attends);
        let mut missing = None;
        for name in names {
            let spelled = self.spelled(needed, name);
            let first = match name.form {
                Form::PerExpert => spelled.replace("{}", "0"),
                Form::Mxfp4(_) => format!("{spelled}_blocks"),
                _ => spelled.clone(),
            };
            if self.directory.contains_key(&first) {
                return self.found(blueprint, layer, needed, name, &spelled);
            }
            missing.get_or_insert(first);
        }
        Err(ModelError::TensorMissing {
            path: self.path.to_owned(),
            tensor: missing.unwrap_or_else(|| format!("{:?}", needed.role)),
            expected: needed.shape.clone(),
        })
    }

    fn spelled(&self, needed: &Needed, name: &Name) -> String {
        match (needed.layer, self.container, needed.role) {
            (Some(layer), ..) => self.layer_prefix(layer) + name.text,
            (None, Container::HuggingFace, Role::Head) => {
                let wrapped = format!("language_model.{}", name.text);
                if self.directory.contains_key(&wrapped) {
                    wrapped
                } else {
                    name.text.to_owned()
                }
            }
            (None, Container::HuggingFace, _) => format!("{}{}", self.root, name.text),
            (None, Container::Gguf, _) => name.text.to_owned(),
        }
    }

    /// The path and the form of the module whose weight has this name, if it is quantised as MLX
    /// does it.
    fn grouping<'n>(&self, name: &'n str) -> Result<Option<(&'n str, Grouping)>, ModelError> {
        let Some((quantisation, path)) = self.quantisation.zip(name.strip_suffix(".weight")) else {
            return Ok(None);
        };
        let scales = self.directory.get(&format!("{path}.scales"));
        let words = self.directory.get(name);
        let is_words = words.is_some_and(|weight| weight.format == Ok(Format::U32));
        let grouping = match (quantisation.modules.get(path), scales) {
            (Some(None), Some(scales)) => return Err(mlx::unexpected_scales(scales, path)),
            (Some(form), _) => *form,
            (None, Some(_)) => Some(quantisation.default),
            (None, None) => is_words.then_some(quantisation.default),
        };
        Ok(grouping.map(|grouping| (path, grouping)))
    }

    /// Checks a tensor that is there.
    fn found(
        &mut self,
        blueprint: &Blueprint,
        layer: Option<&Layer>,
        needed: &Needed,
        name: &Name,
        spelled: &str,
    ) -> Result<Located, ModelError> {
        let plan = Plan::of(blueprint, layer, needed, name.form);
        if plan.is_pair && !plan.width.is_multiple_of(mxfp4::ELEMENTS) {
            return Err(ModelError::Quantisation {
                path: self.path.to_owned(),
                tensor: format!("{spelled}_blocks"),
                found: format!("MXFP4 with rows of {} elements", plan.width),
                known: "rows of whole blocks of 32 elements",
            });
        }
        let values = match name.values {
            Values::PlusOne if self.by_mlx_converter => Values::AsStored,
            values => values,
        };
        let formats = if plan.plain_formats || values != Values::AsStored {
            &Formats::UNQUANTISED
        } else {
            &Formats::ALL
        };
        let (mut stored, mut spans) = (Vec::new(), Vec::new());
        for (spelled, shape) in plan.files(spelled) {
            let grouping = match self.grouping(&spelled)? {
                Some(_) if !plan.may_be_grouped() || values != Values::AsStored => None,
                grouping => grouping,
            };
            if let Some((path, grouping)) = grouping {
                let module = mlx::find(self.directory, self.path, path, &shape, grouping)?;
                let names = module.spans.tensors().map(|(name, _)| name.clone());
                self.used.extend(names);
                self.used.insert(spelled);
                stored.push((module.weight, module.format));
                spans.push(module.spans);
                continue;
            }
            let Some(one) = self.directory.get(&spelled) else {
                return Err(ModelError::TensorMissing {
                    path: self.path.to_owned(),
                    tensor: spelled,
                    expected: shape,
                });
            };
            let format = if plan.is_pair {
                one.check(&spelled, &shape, &mxfp4::FORMATS)?
            } else {
                plan.check(one, needed.role, &spelled, &shape, formats)?
            };
            stored.push((one.clone(), format));
            self.used.insert(spelled);
        }
        Ok(Located {
            name: match name.form {
                Form::PerExpert => spelled.replace("{}", "0"),
                Form::Mxfp4(_) => format!("{spelled}_blocks"),
                _ => spelled.to_owned(),
            },
            shape: needed.shape.clone(),
            width: plan.width,
            stored,
            spans,
            layout: plan.layout,
            values,
        })
    }
}
