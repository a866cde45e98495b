// A TEST DOUBLE of NCCL: reductions. See communicator.h.
#include "communicator.h"

#include <algorithm>

namespace {

template <typename Wide>
Wide combine(Wide left, Wide right, int reduction) {
    if (reduction == ncclProd) return left * right;
    if (reduction == ncclMax) return std::max(left, right);
    if (reduction == ncclMin) return std::min(left, right);
    return left + right;
}

template <typename Element, typename Wide>
void reduce_as(const std::vector<Bytes>& parts, const Operation& operation, double scale) {
    auto ranks = static_cast<Wide>(parts.size());
    auto value = [&](size_t part, size_t at) {
        auto one = static_cast<Wide>(reinterpret_cast<const Element*>(parts[part].data())[at]);
        return operation.reduction >= ncclNumOps ? static_cast<Wide>(one * static_cast<Wide>(scale)) : one;
    };
    for (size_t at = 0; at < operation.count; ++at) {
        Wide total = value(0, at);
        for (size_t part = 1; part < parts.size(); ++part) total = combine(total, value(part, at), operation.reduction);
        if (operation.reduction == ncclAvg) total = static_cast<Wide>(total / ranks);
        static_cast<Element*>(operation.to)[at] = static_cast<Element>(total);
    }
}

}  // namespace

double scale_of(const Scale& scale) {
    if (scale.place == nullptr) return scale.value;
    switch (scale.type) {
        case ncclFloat16: return static_cast<double>(static_cast<float>(*static_cast<const __half*>(scale.place)));
        case ncclBfloat16: return static_cast<double>(static_cast<float>(*static_cast<const __nv_bfloat16*>(scale.place)));
        case ncclFloat32: return static_cast<double>(*static_cast<const float*>(scale.place));
        default: return *static_cast<const double*>(scale.place);
    }
}

void reduce(const std::vector<Bytes>& parts, const Operation& operation) {
    double scale = scale_of(operation.scale);
    switch (operation.type) {
        case ncclInt8: return reduce_as<int8_t, int8_t>(parts, operation, scale);
        case ncclUint8: return reduce_as<uint8_t, uint8_t>(parts, operation, scale);
        case ncclInt32: return reduce_as<int32_t, int32_t>(parts, operation, scale);
        case ncclUint32: return reduce_as<uint32_t, uint32_t>(parts, operation, scale);
        case ncclInt64: return reduce_as<int64_t, int64_t>(parts, operation, scale);
        case ncclUint64: return reduce_as<uint64_t, uint64_t>(parts, operation, scale);
        case ncclFloat16: return reduce_as<__half, float>(parts, operation, scale);
        case ncclFloat32: return reduce_as<float, float>(parts, operation, scale);
        case ncclFloat64: return reduce_as<double, double>(parts, operation, scale);
        case ncclBfloat16: return reduce_as<__nv_bfloat16, float>(parts, operation, scale);
        case ncclFloat8e4m3: return reduce_as<__nv_fp8_e4m3, float>(parts, operation, scale);
        case ncclFloat8e5m2: return reduce_as<__nv_fp8_e5m2, float>(parts, operation, scale);
        default: std::abort();
    }
}
