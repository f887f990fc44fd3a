//! A network's modules by the names that it was built with.

use crate::network::{Attention, DeltaNet, Layer, Mixer, Moe, Mtp, Network, Parts};

/// What [`crate::network::Source`] gave for a name, or `None` if the network has no such module.
impl<P: Parts> Network<P> {
    /// The matrix of module `name`.
    #[must_use]
    pub fn matrix(&self, name: &str) -> Option<&P::Matrix> {
        match name {
            "model.embed_tokens" => Some(&self.embed_tokens),
            "lm_head" => self.lm_head.as_ref(),
            "mtp.fc" => self.mtp.as_ref().map(|mtp| &mtp.fc),
            _ => {
                let (layer, name) = self.layer(name)?;
                layer.matrix(name)
            }
        }
    }

    /// The experts of a `projection`; `layer_mlp` is `model.layers.0.mlp`.
    #[must_use]
    pub fn experts(&self, layer_mlp: &str, projection: &str) -> Option<&P::Experts> {
        let moe = match self.layer(layer_mlp)? {
            (layer, "mlp") => &layer.moe,
            _ => return None,
        };
        match projection {
            "gate_proj" => Some(&moe.gate_proj),
            "up_proj" => Some(&moe.up_proj),
            "down_proj" => Some(&moe.down_proj),
            _ => None,
        }
    }

    /// The vector `name`.
    #[must_use]
    pub fn vector(&self, name: &str) -> Option<&P::Vector> {
        if name == "model.norm" {
            return Some(&self.norm);
        }
        let of_mtp = |part: fn(&Mtp<P>) -> &P::Vector| self.mtp.as_ref().map(part);
        match name {
            "mtp.pre_fc_norm_embedding" => of_mtp(|mtp| &mtp.pre_fc_norm_embedding),
            "mtp.pre_fc_norm_hidden" => of_mtp(|mtp| &mtp.pre_fc_norm_hidden),
            "mtp.norm" => of_mtp(|mtp| &mtp.norm),
            _ => {
                let (layer, name) = self.layer(name)?;
                layer.vector(name)
            }
        }
    }

    /// The layer of a module, and the module's name in it.
    fn layer<'n>(&self, name: &'n str) -> Option<(&Layer<P>, &'n str)> {
        if let Some(name) = name.strip_prefix("mtp.layers.0.") {
            return self.mtp.as_ref().map(|mtp| (&mtp.layer, name));
        }
        let (index, name) = name.strip_prefix("model.layers.")?.split_once('.')?;
        Some((self.layers.get(index.parse::<usize>().ok()?)?, name))
    }
}

impl<P: Parts> Layer<P> {
    fn matrix(&self, name: &str) -> Option<&P::Matrix> {
        let (part, name) = name.split_once('.')?;
        match (part, &self.mixer) {
            ("mlp", _) => self.moe.matrix(name),
            ("linear_attn", Mixer::DeltaNet(mixer)) => mixer.matrix(name),
            ("self_attn", Mixer::Attention(mixer)) => mixer.matrix(name),
            _ => None,
        }
    }

    fn vector(&self, name: &str) -> Option<&P::Vector> {
        match name {
            "input_layernorm" => return Some(&self.input_layernorm),
            "post_attention_layernorm" => return Some(&self.post_attention_layernorm),
            _ => {}
        }
        let (part, name) = name.split_once('.')?;
        match (part, &self.mixer) {
            ("linear_attn", Mixer::DeltaNet(mixer)) => mixer.vector(name),
            ("self_attn", Mixer::Attention(mixer)) => mixer.vector(name),
            _ => None,
        }
    }
}

impl<P: Parts> DeltaNet<P> {
    fn matrix(&self, name: &str) -> Option<&P::Matrix> {
        match name {
            "in_proj_qkv" => Some(&self.in_proj_qkv),
            "in_proj_z" => Some(&self.in_proj_z),
            "in_proj_b" => Some(&self.in_proj_b),
            "in_proj_a" => Some(&self.in_proj_a),
            "out_proj" => Some(&self.out_proj),
            _ => None,
        }
    }

    fn vector(&self, name: &str) -> Option<&P::Vector> {
        match name {
            "conv1d" => Some(&self.conv1d),
            "A_log" => Some(&self.a_log),
            "dt_bias" => Some(&self.dt_bias),
            "norm" => Some(&self.norm),
            _ => None,
        }
    }
}

impl<P: Parts> Attention<P> {
    fn matrix(&self, name: &str) -> Option<&P::Matrix> {
        match name {
            "q_proj" => Some(&self.q_proj),
            "k_proj" => Some(&self.k_proj),
            "v_proj" => Some(&self.v_proj),
            "o_proj" => Some(&self.o_proj),
            _ => None,
        }
    }

    fn vector(&self, name: &str) -> Option<&P::Vector> {
        match name {
            "q_norm" => Some(&self.q_norm),
            "k_norm" => Some(&self.k_norm),
            _ => None,
        }
    }
}

impl<P: Parts> Moe<P> {
    fn matrix(&self, name: &str) -> Option<&P::Matrix> {
        match name {
            "gate" => Some(&self.gate),
            "shared_expert_gate" => Some(&self.shared_expert_gate),
            "shared_expert.gate_proj" => Some(&self.shared_gate_proj),
            "shared_expert.up_proj" => Some(&self.shared_up_proj),
            "shared_expert.down_proj" => Some(&self.shared_down_proj),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Source, VectorKind};
    use crate::shape::Shape;
    use std::convert::Infallible;

    /// Names instead of weights.
    struct NameParts;

    impl Parts for NameParts {
        type Matrix = String;
        type Experts = String;
        type Vector = String;
    }

    /// Gives every module its name, and keeps them all.
    #[derive(Default)]
    struct Names {
        matrices: Vec<String>,
        experts: Vec<(String, &'static str)>,
        vectors: Vec<String>,
    }

    impl Source<NameParts> for Names {
        type Error = Infallible;

        fn matrix(&mut self, name: &str, _: usize, _: usize) -> Result<String, Infallible> {
            self.matrices.push(name.to_owned());
            Ok(name.to_owned())
        }

        fn experts(
            &mut self,
            layer_mlp: &str,
            projection: &'static str,
            _: usize,
            _: usize,
            _: usize,
        ) -> Result<String, Infallible> {
            self.experts.push((layer_mlp.to_owned(), projection));
            Ok(format!("{layer_mlp}.{projection}"))
        }

        fn vector(&mut self, name: &str, _: VectorKind, _: usize) -> Result<String, Infallible> {
            self.vectors.push(name.to_owned());
            Ok(name.to_owned())
        }

        fn has_mtp(&self) -> bool {
            true
        }
    }

    #[test]
    fn every_module_is_found_by_the_name_that_it_was_built_with() {
        let mut names = Names::default();
        let network = match Network::<NameParts>::build(&Shape::demo(), &mut names) {
            Ok(network) => network,
            Err(never) => match never {},
        };
        for name in &names.matrices {
            assert_eq!(network.matrix(name), Some(name));
        }
        for (layer_mlp, projection) in &names.experts {
            let name = format!("{layer_mlp}.{projection}");
            assert_eq!(network.experts(layer_mlp, projection), Some(&name));
        }
        for name in &names.vectors {
            assert_eq!(network.vector(name), Some(name));
        }
        let found = [names.matrices.len(), names.experts.len(), names.vectors.len()];
        // Two and fc; per layer five of the experts, and five (six layers) or four (two, and that of MTP) of the mixer.
        assert_eq!(found, [3 + 9 * 5 + 6 * 5 + 3 * 4, 9 * 3, 4 + 9 * 2 + 6 * 4 + 3 * 2]);
    }

    #[test]
    fn other_names_find_nothing() {
        let network = match Network::<NameParts>::build(&Shape::demo(), &mut Names::default()) {
            Ok(network) => network,
            Err(never) => match never {},
        };
        for name in [
            "",
            "model.norm",
            "model.layers.8.mlp.gate",
            "model.layers.0.self_attn.q_proj",
            "model.layers.x.mlp.gate",
            "mtp.layers.1.mlp.gate",
        ] {
            assert_eq!(network.matrix(name), None, "{name}");
        }
        for name in ["model.embed_tokens", "model.layers.3.linear_attn.norm", "mtp.layers.0.norm"] {
            assert_eq!(network.vector(name), None, "{name}");
        }
        assert_eq!(network.experts("model.layers.0", "gate_proj"), None);
        assert_eq!(network.experts("model.layers.0.mlp", "gate"), None);
    }
}
