#include "double.h"
#include <nccl.h>
extern "C" { ncclResult_t simcollDoubleUnsupported(const char*) {return ncclInternalError;} }
