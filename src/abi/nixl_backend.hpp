/*
 * The binary interface between NIXL and its backend plugins, as the releases 1.0.0 to 1.5.1 have
 * it: what a plugin is called with and must look like, and no more. Names, order and types of
 * members are those of NIXL, since they are the interface; nothing here is defined outside of this
 * plugin. nixl_plugin/interface_check.c compares the order of the virtual functions with the NIXL
 * that runs.
 */
#ifndef TCPX_ABI_NIXL_BACKEND_HPP
#define TCPX_ABI_NIXL_BACKEND_HPP

#include "abi/nixl_status.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define NIXL_PLUGIN_API_VERSION 1

using nixl_status_t = nixl_status;
enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum class nixl_thread_sync_t { NONE, STRICT, RW };
enum class nixl_cost_t { ANALYTICAL_BACKEND };

using nixl_blob_t = std::string;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>; /* agent, text */
using nixlMemViewH = void *;

class nixlBackendMD
{
  public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private)
    {
    }
    virtual ~nixlBackendMD() = default;

  protected:
    bool isPrivateMD;
};

struct nixlBasicDesc {
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

struct nixlBlobDesc : nixlBasicDesc {
    nixl_blob_t metaInfo;
};

struct nixlMetaDesc : nixlBasicDesc {
    nixlBackendMD *metadataP;
};

struct nixlRemoteMetaDesc : nixlMetaDesc {
    std::string remoteAgent;
};

/* Made by NIXL, read here. */
template <class T> class nixlDescList
{
  public:
    nixlDescList() = delete;
    virtual ~nixlDescList() = default;
    nixl_mem_t getType() const
    {
        return type;
    }
    size_t count() const
    {
        return descs.size();
    }
    const T &operator[](size_t index) const
    {
        return descs[index];
    }

  protected:
    nixl_mem_t type;
    std::vector<T> descs;
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

struct nixlBackendOptionalArgs {
    nixl_blob_t notifMsg;
    bool hasNotif;
    nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;
struct nixlAgentOptionalArgs; /* not used here */

struct nixlBackendInitParams {
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay;
    nixl_thread_sync_t syncMode;
    bool enableTelemetry_;
};

class nixlBackendReqH
{
  public:
    virtual ~nixlBackendReqH() = default;
};

class nixlBackendEngine
{
  public:
    explicit nixlBackendEngine(const nixlBackendInitParams *params)
        : backendType(params->type), customParams(*params->customParams),
          localAgent(params->localAgent), enableTelemetry_(params->enableTelemetry_)
    {
    }
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    nixlBackendEngine &operator=(const nixlBackendEngine &) = delete;

    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &type,
                                      nixlBackendMD *&out) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *memory) = 0;
    virtual nixl_status_t connect(const std::string &agent) = 0;
    virtual nixl_status_t disconnect(const std::string &agent) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *memory) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &agent,
                                   nixlBackendReqH *&handle,
                                   const nixl_opt_b_args_t *options) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &agent,
                                   nixlBackendReqH *&handle,
                                   const nixl_opt_b_args_t *options) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;
    virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &,
                                      const nixl_opt_b_args_t *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &,
                                      const nixl_opt_b_args_t *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(nixlMemViewH) const
    {
    }
    virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const = 0;
    virtual nixl_status_t getConnInfo(std::string &) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &memory, const nixl_mem_t &type,
                                       const std::string &agent, nixlBackendMD *&out) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *memory, nixlBackendMD *&out) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &list) = 0;
    virtual nixl_status_t genNotif(const std::string &agent, const std::string &text) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
                                           const nixl_meta_dlist_t &, const std::string &,
                                           nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, nixl_cost_t &,
                                           const nixlAgentOptionalArgs *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }

  private:
    std::string backendType;
    nixl_b_params_t customParams;
    std::vector<char> telemetryEvents_; /* of another type, and empty */
    std::mutex telemetryEventsMutex_;

  protected:
    bool initErr = false;
    const std::string localAgent;
    const bool enableTelemetry_;
};

struct nixlBackendPlugin {
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

#endif
