//! CUDA C++ for the runtime of the CUDA driver: each pipeline is the same text behind definitions that choose its entry
//! point and give its function constants values.

use crate::builtin::Builtin;
use crate::kernels::{Kernel, pointee};
use crate::token::Tokens;
use crate::{Memory, Param, ParamKind, Translation};
use std::fmt::Write as _;

/// The source of a pipeline: `translation` for its entry point `entry` alone, with function constants that are computed
/// with as the compiler runs. `constants` are indices and bits of values; those that the source does not declare are left
/// out, so that pipelines that are the same have the same text.
#[must_use]
pub fn pipeline(translation: &Translation, entry: &str, constants: &[(u32, u32)]) -> String {
    let mut code = format!("#define MSL_ENTRY_{entry}\n");
    for constant in &translation.constants {
        let index = constant.index;
        let given = constants.iter().find(|(other, _)| *other == index);
        let bits = given.map_or(0, |&(_, bits)| bits);
        let value = match constant.scalar.as_str() {
            "bool" => (bits != 0).to_string(),
            "int" => format!("int({bits}u)"),
            "float" => format!("__builtin_bit_cast(float, {bits}u)"),
            _ => format!("{bits}u"),
        };
        let _ = writeln!(code, "#define MSL_VALUE_{index} {value}");
        let _ = writeln!(code, "#define MSL_DEFINED_{index} {}", given.is_some());
    }
    code.push_str(&translation.code);
    code
}

/// The whole source: runtime, kernels, and a function for each entry point that only its own pipeline compiles.
///
/// Kernels stand in the namespace of the runtime, so that its vectors and functions hide CUDA's own of the same names.
pub(crate) fn emit(tokens: &Tokens, kernels: &[Kernel]) -> String {
    let mut code =
        format!("#include \"msl.h\"\nnamespace metal {{\n{}\n#line 1 \"entries\"\n", tokens.join());
    let out = &mut code;
    let mut done: Vec<&str> = vec![];
    for kernel in kernels {
        if !done.contains(&kernel.entry.function.as_str()) {
            types(out, kernel);
            done.push(&kernel.entry.function);
        }
    }
    for kernel in kernels {
        entry(out, kernel);
    }
    out.push_str("}\n");
    code
}

fn buffers(kernel: &Kernel) -> impl Iterator<Item = (u32, Memory, &Param)> {
    kernel.entry.params.iter().filter_map(|param| match param.kind {
        ParamKind::Buffer { index, memory } => Some((index, memory, param)),
        ParamKind::Builtin(_) => None,
    })
}

/// What buffers of a function point to, which may depend on its template's parameters.
fn types(out: &mut String, kernel: &Kernel) {
    let _ = write!(out, "{} struct msl_types_{} {{", kernel.template, kernel.entry.function);
    for (index, _, param) in buffers(kernel) {
        let _ = write!(out, " typedef {} b{index};", pointee(&param.kind_text));
    }
    out.push_str(" };\n");
}

/// The function that a dispatch starts, and a table of sizes and alignments for its driver.
fn entry(out: &mut String, kernel: &Kernel) {
    let entry = &kernel.entry;
    let arguments = match entry.arguments.join(", ") {
        arguments if arguments.is_empty() => arguments,
        arguments => format!("<{arguments}>"),
    };
    let declare = |constant: &str| {
        let declared = buffers(kernel).map(|(index, memory, _)| match memory {
            Memory::Constant => constant.replace('T', &format!("metal::msl_types::b{index}")),
            Memory::Read | Memory::Write => format!("metal::msl_types::b{index}*"),
        });
        declared.enumerate().map(|(i, kind)| format!("{kind} b{i}")).collect::<Vec<_>>().join(", ")
    };
    let layout = buffers(kernel).map(|(index, ..)| {
        format!("sizeof(metal::msl_types::b{index}), alignof(metal::msl_types::b{index}), ")
    });
    let layout: String = layout.collect();
    let passed: Vec<String> = entry.params.iter().map(argument).collect();
    let names: Vec<String> = buffers(kernel).map(|(index, ..)| format!("b{index}")).collect();
    let _ = write!(
        out,
        "#ifdef MSL_ENTRY_{name}\n\
         typedef msl_types_{f}{arguments} msl_types;\n\
         inline void msl_call({referred}) {{ {f}{arguments}({passed}); }}\n\
         }}\n\
         unsigned msl_layout[] = {{{layout}0}};\n\
         extern \"C\" __global__ void MSL_BOUNDS({most}) {name}({declared}) {{\n\
         start_next();\n\
         wait_for_previous();\n\
         metal::msl_call({names});\n\
         }}\n\
         namespace metal {{\n\
         #endif\n",
        name = entry.name,
        f = entry.function,
        most = entry.max_threads.unwrap_or(0),
        referred = declare("const T&"),
        declared = declare("const __grid_constant__ T"),
        passed = passed.join(", "),
        names = names.join(", "),
    );
}

fn argument(param: &Param) -> String {
    let kind = &param.kind_text;
    match param.kind {
        ParamKind::Buffer { index, .. } => format!("b{index}"),
        ParamKind::Builtin(builtin) => {
            let value = match builtin {
                Builtin::ThreadPositionInGrid => "msl::position_in_grid()",
                Builtin::ThreadgroupPositionInGrid => "msl::group_position()",
                Builtin::ThreadPositionInThreadgroup => "msl::thread_position()",
                Builtin::ThreadsPerThreadgroup => "msl::threads()",
                Builtin::ThreadgroupsPerGrid => "msl::groups()",
                Builtin::ThreadsPerGrid => "msl::threads_in_grid()",
                Builtin::ThreadIndexInThreadgroup => "msl::thread_index()",
                Builtin::ThreadIndexInSimdgroup => "msl::lane()",
                Builtin::SimdgroupIndexInThreadgroup => "msl::thread_index() / 32",
                Builtin::SimdgroupsPerThreadgroup => "msl::simdgroups()",
                Builtin::ThreadsPerSimdgroup => "32u",
            };
            if builtin.is_scalar() {
                format!("{kind}({value})")
            } else {
                format!("msl::argument<{kind}>::from({value})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pipeline;
    use crate::{Target, translate};

    const TEXT: &str = "constant uint A [[function_constant(3)]];\n\
        constant bool B [[function_constant(16)]];\n\
        constant float C [[function_constant(17)]];\n\
        constant bool D = is_function_constant_defined(B) && B;\n\
        struct P { uint n; };\n\
        template <typename T> kernel void f(device const T* x [[buffer(0)]], device uint2* y [[buffer(1)]],\n\
        constant P& p [[buffer(2)]], uint2 at [[thread_position_in_grid]], uint i [[thread_index_in_simdgroup]])\n\
        { threadgroup float4 t[8]; y[i] = x[0].zw; }\n\
        template [[host_name(\"f4\")]] [[kernel]] decltype(f<uint4>) f<uint4>;\n\
        kernel void g(device uint* y [[buffer(0)]]) {}\n";

    #[test]
    fn a_pipeline_defines_its_constants_and_no_others() {
        let translation = translate(Target::Cuda, "k.metal", TEXT, &[]).unwrap();
        let code = pipeline(&translation, "f4", &[(0, 9), (3, 7), (17, 0x3f80_0000)]);
        let defined = "#define MSL_ENTRY_f4\n\
            #define MSL_VALUE_3 7u\n#define MSL_DEFINED_3 true\n\
            #define MSL_VALUE_16 false\n#define MSL_DEFINED_16 false\n\
            #define MSL_VALUE_17 __builtin_bit_cast(float, 1065353216u)\n#define MSL_DEFINED_17 true\n\
            #include \"msl.h\"\n";
        assert!(code.starts_with(defined), "{code}");
        // What the source does not declare makes no other pipeline.
        assert_eq!(code, pipeline(&translation, "f4", &[(3, 7), (17, 0x3f80_0000)]));
        let constant =
            "constexpr bool msl_defined_A = MSL_DEFINED_3; constexpr uint A = MSL_VALUE_3";
        assert!(code.contains(constant), "{code}");
        assert!(code.contains("constant bool D = msl_defined_B && B;"), "{code}");
    }

    #[test]
    fn entries_take_pointers_and_parameters_by_value() {
        let code = translate(Target::Cuda, "k.metal", TEXT, &[]).unwrap().code;
        for line in [
            "template <typename T> struct msl_types_f { typedef device const T b0; typedef device uint2 b1; \
             typedef constant P b2; };",
            "typedef msl_types_f<uint4> msl_types;",
            "f<uint4>(b0, b1, b2, msl::argument<uint2>::from(msl::position_in_grid()), uint(msl::lane()));",
            "f4(metal::msl_types::b0* b0, metal::msl_types::b1* b1, const __grid_constant__ metal::msl_types::b2 b2)",
            "typedef msl_types_g msl_types;",
            "MSL_THREADGROUP(t, [8], float4);",
            "x[0].msl_swizzle(msl::order<2, 3>());",
        ] {
            assert!(code.contains(line), "{line} in {code}");
        }
    }
}
