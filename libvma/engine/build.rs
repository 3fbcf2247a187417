//! Has the engine compiled anew when the profile changes, which ci/rustc hands to the compiler.

fn main() {
    println!("cargo:rerun-if-changed=../profile");
    println!("cargo:rerun-if-env-changed=LIBVMA_PROFILE_INTO");
}
