#define SPECD_ABI_LAYOUT "tmp"
